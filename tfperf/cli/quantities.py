"""Options that are quantities: times, sizes, shares, ranges."""

import re

import typer

from tfperf.cli.words import whole_numbers

__all__ = ["batch_sizes", "byte_count", "duration", "share"]

SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}

BYTES = {
    "": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9,
    "k": 2**10, "m": 2**20, "g": 2**30, "kib": 2**10, "mib": 2**20, "gib": 2**30,
}  # fmt: skip


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


def share(option: str, text: str) -> float:
    """A share from 0 to 1, of "0.5%" or "0.005".

    Raises:
        typer.BadParameter: it is anything else.
    """
    number, unit = _parts(option, text, "a share, as 0.5%")
    value = number / 100 if unit == "%" else number
    if unit not in ("", "%") or value > 1:
        raise typer.BadParameter(f"expected {option} to be a share, as 0.5%. Received: {text}")
    return value


def _parts(option: str, text: str, wanted: str) -> tuple[float, str]:
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-zA-Z%]*)\s*", text, re.ASCII)
    if not found:
        raise typer.BadParameter(f"expected {option} to be {wanted}. Received: {text}")
    return float(found[1]), found[2].lower()
