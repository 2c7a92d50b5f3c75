"""Every recipe is a page: its header, the technique first, and not too long. Prints a table of all of them."""

import ast
import importlib
import re
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tfperf.cookbook import list_recipes, read_header

ROOT = Path(__file__).resolve().parents[2]
RECIPES = list_recipes()
SHORTEST, LONGEST = 60, 150
LONGER = {"mnist_hvd_elastic": 180, "mnist_spark": 180}
LATEST = 45
"""The line at which the technique begins, at the latest."""

ALLOWED = {"tensorflow", "keras", "numpy", "tfperf"}
"""What a recipe may import beside Python's own modules; other libraries are imported where they are used."""


class Page(NamedTuple):
    """Where the technique stands in a recipe."""

    lines: int
    begins: int
    technique: int
    """Lines of it in all."""
    longest: int
    """Lines of its longest function, without decorators."""


def page_of(name):
    """The measures of a recipe."""
    text = RECIPES[name].read_text()
    shown = read_header(RECIPES[name]).shows
    nodes = [node for node in ast.parse(text).body if getattr(node, "name", None) in shown]
    begins = min(node.lineno - len(node.decorator_list) for node in nodes)
    lengths = [node.end_lineno - node.lineno + 1 for node in nodes]
    return Page(len(text.splitlines()), begins, sum(lengths), max(lengths))


def public_rooms():
    """The modules of tfperf that its documentation offers to recipes and users."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    return set(re.findall(r"^\| `(tfperf(?:\.\w+)*)` \|", text, re.MULTILINE))


def test_all_pages_in_one_table():
    pages = {name: page_of(name) for name in RECIPES}
    print(f"\n{'recipe':22} {'lines':>6} {'begins at':>10} {'technique':>10} {'longest function':>17}")
    for name, page in pages.items():
        print(f"{name:22} {page.lines:6} {page.begins:10} {page.technique:10} {page.longest:17}")
    whole, technique = sum(page.lines for page in pages.values()), sum(page.technique for page in pages.values())
    print(f"{'all':22} {whole:6} {'':10} {technique:10}")


@pytest.mark.parametrize("name", RECIPES)
def test_it_is_as_long_as_a_page(name):
    assert SHORTEST <= page_of(name).lines <= LONGER.get(name, LONGEST)


@pytest.mark.parametrize("name", RECIPES)
def test_the_technique_comes_first_and_is_short(name):
    page = page_of(name)
    assert page.begins <= LATEST
    assert page.longest <= 20  # 3 to 15 lines of code, and a docstring


@pytest.mark.parametrize("name", RECIPES)
def test_what_it_shows_has_a_docstring_of_one_sentence(name):
    shown = read_header(RECIPES[name]).shows
    for node in ast.parse(RECIPES[name].read_text()).body:
        if getattr(node, "name", None) in shown:
            assert re.fullmatch(r"[A-Z`][^\n]*(\n[^\n]+)?\.", ast.get_docstring(node) or ""), node.name


@pytest.mark.parametrize("name", RECIPES)
def test_it_imports_public_names_only(name):
    rooms = public_rooms()
    for node in ast.walk(ast.parse(RECIPES[name].read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == "tfperf":
                    assert alias.name in rooms
        elif isinstance(node, ast.ImportFrom) and node.module.partition(".")[0] == "tfperf":
            assert node.module in rooms
            public = importlib.import_module(node.module).__all__
            assert {alias.name for alias in node.names} <= set(public), f"{node.module} does not offer them"


@pytest.mark.parametrize("name", RECIPES)
def test_its_first_imports_are_plain(name):
    for node in ast.parse(RECIPES[name].read_text()).body:
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        modules += [node.module] if isinstance(node, ast.ImportFrom) else []
        roots = {module.partition(".")[0] for module in modules}
        assert roots <= ALLOWED | sys.stdlib_module_names
