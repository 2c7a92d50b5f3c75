"""What the text of an option means: several values, a quantity, a file to write."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import typer

from tfperf.errors import error_message

__all__ = ["batch_sizes", "byte_count", "check_writable", "chosen_from", "duration", "share", "whole_numbers"]

MOST_BYTES = 230
"""The longest name of a file: while it is written it is longer by 15, and Linux allows 255."""

Choice = TypeVar("Choice", bound=str)

SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}

BYTES = {
    "": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9,
    "k": 2**10, "m": 2**20, "g": 2**30, "kib": 2**10, "mib": 2**20, "gib": 2**30,
}  # fmt: skip


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
        reason = error_message(error)
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


def chosen_from(known: Sequence[Choice], option: str, text: str) -> tuple[Choice, ...]:
    """Those of the known names that "a,b" names, in their own order; "all": all of them.

    Raises:
        typer.BadParameter: it names another.
    """
    names = [part.strip() for part in text.split(",")]
    if unknown := [name for name in names if name not in known and name != "all"]:
        raise typer.BadParameter(f"expected {option} to be of {', '.join(known)}, or all. Received: {unknown[0]}")
    return tuple(known) if "all" in names else tuple(name for name in known if name in names)


def batch_sizes(option: str, text: str) -> tuple[int, ...]:
    """The batch sizes of "1,8,32", or of "1:256": the first, its doubles, and the last.

    Raises:
        typer.BadParameter: it is anything else.
    """
    if ":" not in text:
        return tuple(sorted(set(whole_numbers(option, text))))
    ends = text.split(":")
    numbers = [int(end) for end in ends if end.strip().isdecimal() and len(end) < 10]
    if len(ends) != 2 or len(numbers) != 2 or not 0 < numbers[0] <= numbers[1]:
        raise typer.BadParameter(f"expected {option} as 1,8,32 or 1:256. Received: {text}")
    first, last = numbers
    doubles = [first * 2**power for power in range(last.bit_length()) if first * 2**power < last]
    return (*doubles, last)


def duration(option: str, text: str) -> float:
    """Seconds, of "5ms", "800us" or "1.5s".

    Raises:
        typer.BadParameter: it is anything else, or not above 0.
    """
    number, unit = _parts(option, text, "a time, as 5ms")
    if unit not in SECONDS or not number > 0:
        raise typer.BadParameter(f"expected {option} to be a time, as 5ms. Received: {text}")
    return number * SECONDS[unit]


def byte_count(option: str, text: str) -> int:
    """Bytes, of "2GiB" or "500MB".

    Raises:
        typer.BadParameter: it is anything else, or under 1.
    """
    number, unit = _parts(option, text, "a size, as 2GiB")
    if unit not in BYTES or number * BYTES[unit] < 1:
        raise typer.BadParameter(f"expected {option} to be a size, as 2GiB. Received: {text}")
    return int(number * BYTES[unit])


def share(option: str, text: str, most: float = 1.0) -> float:
    """A share from 0 to `most`, of "0.5%" or "0.005".

    Raises:
        typer.BadParameter: it is anything else.
    """
    number = text.strip()
    try:
        value = float(number.removesuffix("%")) / (100 if number.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value <= most:
        raise typer.BadParameter(f"expected {option} to be a share, as 0.5%. Received: {text}")
    return value


def _parts(option: str, text: str, wanted: str) -> tuple[float, str]:
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-zA-Z]*)\s*", text, re.ASCII)
    if not found:
        raise typer.BadParameter(f"expected {option} to be {wanted}. Received: {text}")
    return float(found[1]), found[2].lower()
