"""Where recipes are found, and their headers."""

import pytest

from tfperf.cookbook import catalog, read_header
from tfperf.errors import RecipeError


def test_an_unknown_name_tells_the_nearest():
    with pytest.raises(RecipeError, match="did you mean 'hybridize'"):
        catalog.find_recipe("hybridise")


def test_a_name_like_none_lists_all():
    with pytest.raises(RecipeError, match=r"async_dispatch, auto_parallel, .*, transfers$"):
        catalog.find_recipe("zzzz")


@pytest.mark.parametrize("name", ["../setup", "/etc/passwd", "hybridize.py", ""])
def test_a_path_is_no_name(name):
    with pytest.raises(RecipeError):
        catalog.find_recipe(name)


def test_an_installed_wheel_has_its_own_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(catalog, "_PACKAGE", tmp_path / "tfperf")
    with pytest.raises(RecipeError, match="found none"):
        catalog.list_recipes()
    inside = tmp_path / "tfperf" / "_recipes"
    inside.mkdir(parents=True)
    (inside / "a.py").touch()
    (inside / "_private.py").touch()
    assert catalog.list_recipes() == {"a": inside / "a.py"}


GOOD = '''"""Why?

Source: 000, a heading
Claim: a claim: with a colon
Holds not: where
    it does not.
Needs: nothing,
    really nothing.
Time: 1 s
Shows: first, second
Try:
    - --batch 2: slower.
    - --batch 4: slower still,
      by far.
"""
import nonexistent_module


def first(): ...


def second(): ...


def main(recipe): ...
'''


@pytest.fixture
def header_of(tmp_path):
    """A function that reads the header of this text."""

    def header_of(text):
        path = tmp_path / "odd.py"
        path.write_text(text)
        return read_header(path)

    return header_of


def test_a_header_is_read_without_running_the_recipe(header_of):
    header = header_of(GOOD)
    assert header.title == "Why?"
    assert header.needs == "nothing, really nothing."
    assert header.claim == "a claim: with a colon"
    assert header.holds_not == "where it does not."
    assert header.shows == ("first", "second")
    assert header.tries == ("--batch 2: slower.", "--batch 4: slower still, by far.")
    assert header.command == "python recipes/odd.py"


def test_one_exercise_needs_no_dash(header_of):
    before, _, after = GOOD.partition("Try:\n")
    header = header_of(before + "Try: --batch 2: slower.\n" + after[after.index('"""') :])
    assert header.tries == ("--batch 2: slower.",)


@pytest.mark.parametrize("field", ["Source", "Claim", "Holds not", "Needs", "Time", "Shows", "Try"])
def test_a_missing_field_is_named(header_of, field):
    lines = GOOD.splitlines(keepends=True)
    begins = next(number for number, line in enumerate(lines) if line.startswith(f"{field}:"))
    ends = next(number for number in range(begins + 1, len(lines)) if not lines[number].startswith(" "))
    with pytest.raises(RecipeError, match=f"'{field}:'"):
        header_of("".join(lines[:begins] + lines[ends:]))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("Claim:", "Clam:", "Clam: a claim"),
        ("Time: 1 s", "Time: 1 s\nTime: 2 s", "Time: 2 s"),
        ("000, a heading", "000", "comma and a heading"),
        ("000, a heading", "007, a heading", "007"),
        ("first, second", "first, third", "third"),
        ("first, second", "second, first", "in their order"),
        ("first, second", "main", "above main"),
        ("--batch 2: slower.", "--batch 2", "what should then happen"),
        ("    - --batch 2: slower.\n", "    - --batch 2: slower.\n" * 3, "one to 3"),
    ],
)
def test_a_malformed_field_is_said(header_of, old, new, says):
    with pytest.raises(RecipeError, match=says) as error:
        header_of(GOOD.replace(old, new, 1))
    assert "odd.py" in str(error.value)
    assert "\n" not in str(error.value)


def test_no_source_is_a_source(header_of):
    assert header_of(GOOD.replace("000, a heading", "none")).source == "none"


@pytest.mark.parametrize("content", ["", "x = 1", "def broken(", "\0", '"""\n"""'])
def test_no_header_is_an_error_that_names_the_file(header_of, content):
    with pytest.raises(RecipeError, match=r"odd\.py"):
        header_of(content)
