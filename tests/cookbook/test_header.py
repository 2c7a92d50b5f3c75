"""Headers of recipes."""

import pytest

from tfperf.cookbook import read_header
from tfperf.errors import RecipeError

GOOD = '''"""Why?

Command: python x.py
Needs: nothing,
    really nothing.
Time: 1 s
Source: a claim: with a colon
Expect: an answer
"""
import nonexistent_module
'''


def test_a_header_is_read_without_running_the_recipe(tmp_path):
    path = tmp_path / "x.py"
    path.write_text(GOOD)
    header = read_header(path)
    assert header.title == "Why?"
    assert header.needs == "nothing, really nothing."
    assert header.source == "a claim: with a colon"


@pytest.mark.parametrize("field", ["Command", "Needs", "Time", "Source", "Expect"])
def test_a_missing_field_is_named(tmp_path, field):
    path = tmp_path / "x.py"
    path.write_text(GOOD.replace(f"{field}:", "Other:"))
    with pytest.raises(RecipeError, match=f"'{field}:'"):
        read_header(path)


@pytest.mark.parametrize("content", ["", "x = 1", "def broken(", "\0", '"""\n"""'])
def test_no_header_is_an_error_that_names_the_file(tmp_path, content):
    path = tmp_path / "odd.py"
    path.write_text(content)
    with pytest.raises(RecipeError, match=r"odd\.py"):
        read_header(path)
