"""Options that hold several values, and errors of the system in one line."""

from collections.abc import Sequence
from typing import TypeVar

import typer

__all__ = ["chosen_from", "error_words", "whole_numbers"]


def whole_numbers(option: str, text: str) -> tuple[int, ...]:
    """The whole numbers, 1 or more, of "1,8,32".

    Raises:
        typer.BadParameter: it is anything else.
    """
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise typer.BadParameter(f"expected {option} to be whole numbers with commas, as 1,32. Received: {text}")
    return tuple(int(part) for part in parts)


Choice = TypeVar("Choice", bound=str)


def chosen_from(known: Sequence[Choice], option: str, text: str) -> tuple[Choice, ...]:
    """Those of the known names that "a,b" names, in their own order; "all": all of them.

    Raises:
        typer.BadParameter: it names another.
    """
    names = [part.strip() for part in text.split(",")]
    if unknown := [name for name in names if name not in known and name != "all"]:
        raise typer.BadParameter(f"expected {option} to be of {', '.join(known)}, or all. Received: {unknown[0]}")
    return tuple(known) if "all" in names else tuple(name for name in known if name in names)


def error_words(error: Exception) -> str:
    """What a system's error says, with the file it is about, where it knows."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
