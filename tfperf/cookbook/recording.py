"""Recorded runs: what recipes found on a machine, kept so that the book can show it, for as long as it is of today."""

import ast
import hashlib
import json
from pathlib import Path
from typing import Literal

from pydantic import Field

from tfperf.cookbook.catalog import list_recipes, read_header
from tfperf.errors import RecipeError
from tfperf.measure.results import Result, read_document
from tfperf.measure.value import Value

__all__ = [
    "FORMAT",
    "Recording",
    "read_recordings",
    "recorded_machines",
    "technique_digest",
    "why_stale",
    "without_noise",
]

FORMAT: Literal["tfperf recording"] = "tfperf recording"
"""What the field `format` of every recording says."""


class Recording(Value):
    """One whole run of a recipe; its plot is the SVG of the same name beside it."""

    format: Literal["tfperf recording"] = FORMAT
    version: Literal[1] = 1
    technique: str = Field(pattern="^[0-9a-f]{64}$", description="digest of the technique that was run")
    result: Result


def without_noise(result: Result) -> Result:
    """The same result with six digits of each figure: what a clock says beyond them is noise, and most of a file."""
    return Result.model_validate(_rounded(result.model_dump()))


def _rounded(value: object) -> object:
    """A value of a result, with six digits of each figure in it."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    return tuple(map(_rounded, value)) if isinstance(value, tuple | list) else value


def technique_digest(path: Path) -> str:
    """A digest of a recipe's technique: the functions that its header names; comments and layout do not count.

    Args:
        path: the recipe's file.

    Returns:
        SHA-256 in hexadecimal.

    Raises:
        RecipeError: the header is wrong.
    """
    shown = read_header(path).shows
    module = ast.parse(path.read_text(encoding="utf-8"))
    parts = [
        _form(_without_docstrings(node))
        for node in module.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in shown
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _without_docstrings(node: ast.FunctionDef | ast.ClassDef) -> ast.FunctionDef | ast.ClassDef:
    """The same without what `ast.get_docstring` gives, inside too."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(inner) is not None:
            inner.body = inner.body[1:] or [ast.Pass()]
    return node


def _form(part: object) -> object:
    """A syntax tree as lists, dictionaries and strings that every version of Python makes alike.

    Neither `ast.dump` nor `ast.unparse` is: new versions add fields that are empty, and quote f-strings otherwise.
    """
    if isinstance(part, ast.AST):
        fields = {name: _form(value) for name, value in ast.iter_fields(part) if value is not None and value != []}
        return {type(part).__name__: fields}
    return [_form(one) for one in part] if isinstance(part, list) else repr(part)


def recorded_machines(folder: Path) -> list[str]:
    """The machines that have recordings in a folder, by name."""
    return sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


def read_recordings(folder: Path) -> dict[str, Recording]:
    """The recordings of one machine, by recipe.

    Args:
        folder: the machine's.

    Raises:
        ResultFileError: one of the files is not what `tfperf record` writes.
        RecipeError: one is of a recipe that does not exist.
    """
    recipes = list_recipes()
    recordings = {path.stem: read_document(path, Recording) for path in sorted(folder.glob("*.json"))}
    if strangers := sorted(recordings.keys() - recipes.keys()):
        raise RecipeError(f"expected recordings of recipes that exist. Received: {folder / strangers[0]}.json")
    return recordings


def why_stale(recording: Recording, recipe: Path) -> str:
    """Why a recording no longer shows its recipe, in words; "" where it does.

    Raises:
        RecipeError: the recipe's header is wrong.
    """
    if recording.technique == technique_digest(recipe):
        return ""
    return (
        f"expected the recording of {recipe.stem} to be of its technique of today, which has changed since "
        f"{recording.result.created}: tfperf record {recipe.stem}"
    )
