"""Where the recipes are, and their headers: the docstring of each, read without running it."""

import ast
import difflib
from pathlib import Path
from typing import NamedTuple

from tfperf.errors import RecipeError

__all__ = ["FIELDS", "Header", "find_recipe", "list_recipes", "read_header"]

_PACKAGE = Path(__file__).resolve().parent.parent

FIELDS = {
    "Source": "the document and the heading that the claim stands under, or 'none'",
    "Claim": "what the source says, with its figure",
    "Expect": "what the reader will see",
    "Holds not": "where the lesson does not hold",
    "Needs": "hardware, packages and data",
    "Time": "how long it takes, and with --quick",
    "Shows": "the functions that are the technique",
    "Try": "one to three changes, each with what should then happen",
    "Command": "how to run it, where that is not plain `python recipes/NAME.py`",
}
"""Field -> what it says, in the order in which they are shown."""

OPTIONAL = ("Expect", "Command")

DOCUMENTS = ("000", "001", "002", "003", "004")
"""The source documents."""

MOST_TRIES = 3
"""Exercises that a header may have."""


def list_recipes() -> dict[str, Path]:
    """Name -> file of every recipe, by name.

    Raises:
        RecipeError: this installation has no recipes.
    """
    for folder in (_PACKAGE.parent / "recipes", _PACKAGE / "_recipes"):  # a checkout, an installed wheel
        recipes = {path.stem: path for path in sorted(folder.glob("*.py")) if not path.stem.startswith("_")}
        if recipes:
            return recipes
    raise RecipeError("expected the recipes beside or inside the package, found none; install tfperf again")


def find_recipe(name: str) -> Path:
    """The file of one recipe.

    Raises:
        RecipeError: there is no such recipe; the message names the nearest.
    """
    recipes = list_recipes()
    if name in recipes:
        return recipes[name]
    nearest = difflib.get_close_matches(name, recipes, n=1, cutoff=0.5)
    hint = f"did you mean '{nearest[0]}'?" if nearest else f"there are: {', '.join(recipes)}"
    raise RecipeError(f"no recipe '{name}'; {hint}")


class Header(NamedTuple):
    """The opening of a recipe: its question, and one text for each thing a reader wants to know first."""

    title: str
    """The question that the recipe answers."""
    source: str
    """The document and the heading that the claim stands under: "000, 混合式编程"; or "none"."""
    claim: str
    """What the source says, with its figure."""
    holds_not: str
    """Where the lesson does not hold."""
    needs: str
    """Hardware, packages and data that it needs."""
    time: str
    """How long it takes, and with --quick."""
    shows: tuple[str, ...]
    """The names of the functions that are the technique, in their order in the file."""
    tries: tuple[str, ...]
    """One to three exercises, each "CHANGE: what should then happen"."""
    expect: str = ""
    """What the reader will see."""
    command: str = ""
    """How to run it."""


def read_header(path: Path) -> Header:
    """Read the header of the recipe at `path`.

    A header is the module's docstring: the question in its first line, then a paragraph `Field: text` for each of
    `FIELDS`; the further lines of a paragraph are indented. `Try:` holds one exercise, or several that begin with "- ".

    Raises:
        RecipeError: the file is no Python, has no docstring, lacks a field, or has one that is malformed.
    """
    try:
        module = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError) as error:
        raise RecipeError(f"cannot read the recipe {path}: {error}") from error
    title, _, rest = (ast.get_docstring(module) or "").partition("\n")
    if not title:
        raise RecipeError(f"expected {path} to begin with a docstring whose first line is a question; it has none")
    fields = _paragraphs(path, rest)
    if missing := [name for name in FIELDS if name not in OPTIONAL and not fields.get(name)]:
        lacks = "; ".join(f"'{name}:' ({FIELDS[name]})" for name in missing)
        raise RecipeError(f"expected a field for everything that a reader asks first in {path}; it lacks {lacks}")
    document, _, heading = fields["Source"].partition(",")
    if fields["Source"] != "none" and (document not in DOCUMENTS or not heading.strip()):
        wanted = f"expected 'Source:' to be a document ({', '.join(DOCUMENTS)}), a comma and a heading, or 'none'"
        raise RecipeError(f"{wanted}, in {path}. Received: {fields['Source']}")
    return Header(
        title=title,
        source=fields["Source"],
        claim=fields["Claim"],
        holds_not=fields["Holds not"],
        needs=fields["Needs"],
        time=fields["Time"],
        shows=_functions(path, module, fields["Shows"]),
        tries=_tries(path, fields["Try"]),
        expect=fields.get("Expect", ""),
        command=fields.get("Command", "") or f"python recipes/{path.name}",
    )


def _paragraphs(path: Path, text: str) -> dict[str, str]:
    """Field -> text, from lines `Field: text` and the indented lines after each; one that begins "- " stays a line.

    Raises:
        RecipeError: a line belongs to no field, or a field is there twice.
    """
    fields: dict[str, str] = {}
    current = ""
    for line in filter(str.strip, text.splitlines()):
        name, colon, words = line.partition(":")
        if line.startswith(" ") and current:
            stripped = line.strip()
            fields[current] += ("\n" if stripped.startswith("- ") else " ") + stripped
        elif colon and name in FIELDS and name not in fields:
            current = name
            fields[current] = words.strip()
        else:
            wanted = (
                f"expected a line that begins with one of {', '.join(FIELDS)} and a colon, each once, or is indented"
            )
            raise RecipeError(f"{wanted}, in the header of {path}. Received: {line}")
    return {name: words.strip() for name, words in fields.items()}


def _functions(path: Path, module: ast.Module, words: str) -> tuple[str, ...]:
    """The names that `Shows:` lists.

    Raises:
        RecipeError: one is no function above `main`, or they stand in another order.
    """
    names = tuple(name.strip() for name in words.rstrip(".").split(","))
    defined = [node.name for node in module.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    before_main = defined[: defined.index("main")] if "main" in defined else defined
    if [name for name in before_main if name in names] != list(names):
        there = ", ".join(before_main) or "none"
        raise RecipeError(
            f"expected 'Shows:' to name functions that stand above main in {path}, in their order ({there}). "
            f"Received: {words}"
        )
    return names


def _tries(path: Path, words: str) -> tuple[str, ...]:
    """The exercises of `Try:`.

    Raises:
        RecipeError: there are too many, or one does not say what should happen.
    """
    tries = tuple(line.removeprefix("- ").strip() for line in words.splitlines())
    if len(tries) > MOST_TRIES or not all(": " in one for one in tries):
        raise RecipeError(
            f"expected 'Try:' to hold one to {MOST_TRIES} changes, each 'CHANGE: what should then happen', in {path}. "
            f"Received: {' / '.join(tries)}"
        )
    return tries
