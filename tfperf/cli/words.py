"""Options that hold several values or name a file to write, and errors of the system in one line."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import typer

__all__ = ["check_writable", "chosen_from", "error_words", "whole_numbers"]

MOST_BYTES = 230
"""The longest name of a file: while it is written it is longer by 15, and Linux allows 255."""


def check_writable(option: str, path: Path) -> None:
    """Refuse a file that cannot be written, before minutes of work are spent on it.

    Raises:
        typer.BadParameter: names the option, and why not.
    """
    from tfperf.files import why_not_writable

    try:
        reason = why_not_writable(path)
        if len(os.fsencode(path.name)) > MOST_BYTES:
            reason = f"expected a file name of at most {MOST_BYTES} bytes. Received: {path.name}"
    except (OSError, ValueError) as error:
        reason = error_words(error)
    if reason is not None:
        raise typer.BadParameter(f"{option}: {reason}")


def whole_numbers(option: str, text: str) -> tuple[int, ...]:
    """The whole numbers of "1,8,32", each from 1 to 999,999,999.

    Raises:
        typer.BadParameter: it is anything else.
    """
    parts = text.split(",")
    if not all(re.fullmatch(r"\s*0*[1-9]\d{0,8}\s*", part, re.ASCII) for part in parts):
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
