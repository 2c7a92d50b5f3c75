"""Checks of the arguments that describe a net; each returns the plain Python value or says what is wrong."""

import operator
from collections.abc import Iterable
from typing import Any

__all__ = ["image_shape", "whole_number", "whole_numbers"]


def whole_number(name: str, value: Any, at_least: int = 1) -> int:
    """Return ``value`` as an int.

    Raises:
        ValueError: it is not a whole number (True and False are not), or less than ``at_least``.
    """
    try:
        number = operator.index(value)  # takes NumPy's integers, refuses floats
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or number < at_least:
        raise ValueError(f"expected {name} to be a whole number, {at_least} or more. Received: {name}={value!r}")
    return number


def whole_numbers(name: str, value: Any, length: int | None = None) -> tuple[int, ...]:
    """Return ``value``, an iterable of ``length`` (None: any) whole numbers of 1 or more, as a tuple.

    Raises:
        ValueError: it is anything else.
    """
    how_many = "" if length is None else f"{length} "
    message = f"expected {name} to be a tuple of {how_many}whole numbers, 1 or more. Received: {name}={value!r}"
    if not isinstance(value, Iterable):
        raise ValueError(message)
    elements = tuple(value)
    try:
        numbers = tuple(whole_number(name, element) for element in elements)
    except ValueError:
        raise ValueError(message) from None
    if length is not None and len(numbers) != length:
        raise ValueError(message)
    return numbers


def image_shape(value: Any, smallest: int = 1) -> tuple[int, int, int]:
    """Return ``value`` as (height, width, channels).

    Args:
        value: the argument ``input_shape`` of a convolutional net.
        smallest: the least height and width with which every layer still has an output.

    Raises:
        ValueError: it is not three whole numbers of 1 or more, or the image is too small.
    """
    height, width, channels = whole_numbers("input_shape", value, length=3)
    if min(height, width) < smallest:
        raise ValueError(
            f"expected input_shape=(height, width, channels) with height and width of {smallest} or more, so "
            f"that every layer has an output. Received: input_shape={value!r}"
        )
    return height, width, channels
