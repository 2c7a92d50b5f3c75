"""The hierarchy of errors is the one that its file draws."""

import inspect
import re

import pytest

from tfperf import errors

NAMES = sorted(name for name, value in vars(errors).items() if inspect.isclass(value))


def test_all_is_what_there_is() -> None:
    assert {*NAMES, "in_one_line"} == set(errors.__all__)


@pytest.mark.parametrize("name", NAMES)
def test_one_base_catches_them_all(name: str) -> None:
    error = getattr(errors, name)
    assert issubclass(error, errors.TfperfError)
    # A wrong argument is a ValueError or TypeError; what tfperf raises on purpose must not be caught as one.
    assert not issubclass(error, ValueError | TypeError | OSError | KeyError)
    assert str(error("expected this, received that")) == "expected this, received that"


def test_the_drawing_shows_every_error() -> None:
    drawn = set(re.findall(r"\b\w+Error\b", errors.__doc__)) - {"ValueError", "TypeError"}
    assert drawn == set(NAMES)


def test_an_error_of_others_is_told_in_one_line() -> None:
    assert errors.in_one_line(RuntimeError("no\n  such device")) == "RuntimeError: no such device"
    assert len(errors.in_one_line(ValueError("x" * 1000))) < 320
