"""What a recipe says of itself, read from its docstring without running it."""

import ast
from pathlib import Path
from typing import NamedTuple

from tfperf.errors import RecipeError

__all__ = ["Header", "read_header"]


class Header(NamedTuple):
    """The opening of a recipe: its question, and one paragraph for each thing a reader wants to know first."""

    title: str
    """The question that the recipe answers."""
    command: str
    """How to run it."""
    needs: str
    """Hardware, packages and data that it needs."""
    time: str
    """How long it takes, and with --quick."""
    source: str
    """What the source text claims."""
    expect: str
    """What the reader will see."""


def read_header(path: Path) -> Header:
    """Read the header of the recipe at `path`.

    A header is the module's docstring: the question in its first line, then a paragraph `Field: text`
    for each field of `Header`; a paragraph's further lines are indented.

    Raises:
        RecipeError: the file is no Python, has no docstring, or lacks a field.
    """
    try:
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    except (OSError, SyntaxError, ValueError) as error:
        raise RecipeError(f"cannot read the recipe {path}: {error}") from error
    title, _, rest = (docstring or "").partition("\n")
    fields = _paragraphs(rest)
    missing = [name for name in Header._fields[1:] if not fields.get(name)]
    if not title or missing:
        lacks = ", ".join(f"'{name.capitalize()}:'" for name in missing) or "its question"
        raise RecipeError(f"expected a docstring with a question and its fields in {path}; it lacks {lacks}")
    return Header(title, **{name: fields[name] for name in Header._fields[1:]})


def _paragraphs(text: str) -> dict[str, str]:
    """field -> text, of lines `Field: text` and the indented lines that follow each."""
    fields: dict[str, str] = {}
    current = ""
    for line in text.splitlines():
        name, colon, words = line.partition(":")
        if colon and name.isalpha() and name.istitle():
            current = name.lower()
            fields[current] = words.strip()
        elif current and line.startswith(" "):
            fields[current] += " " + line.strip()
        else:
            current = ""
    return fields
