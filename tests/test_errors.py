"""The hierarchy of errors is the one that its file draws."""

import inspect
import re

import pytest

from tfperf import errors
from tfperf.errors import escape_unprintable, shortened

NAMES = sorted(name for name, value in vars(errors).items() if inspect.isclass(value))


def test_all_is_what_there_is() -> None:
    assert {*NAMES, "error_message", "escape_unprintable", "in_one_line", "shortened"} == set(errors.__all__)


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


def test_a_message_is_cut_between_words_and_has_no_escape_codes():
    message = "\x1b[1mInput 0 of layer\x1b[0m 'dense' is incompatible\n  with it: " + "expected shape " * 40
    words = shortened(message)
    assert words.startswith("Input 0 of layer 'dense' is incompatible with it: expected shape")
    assert words.endswith(" ...")
    assert len(words) <= 304
    assert set(words.split()) <= {*message.replace("\x1b[1m", "").replace("\x1b[0m", "").split(), "..."}


def test_the_end_of_a_message_is_kept_in_whole_words():
    words = shortened("at line 1 " * 60 + "ValueError: the cause", most=40, keep_end=True)
    assert words.startswith("... ")
    assert words.endswith("ValueError: the cause")


def test_one_endless_word_is_cut():
    assert shortened("x" * 1000, most=10) == "x" * 10
    assert shortened("") == ""


@pytest.mark.parametrize(
    ("letter", "words"),
    [
        ("\x1b", "\\x1b"),
        ("\x07", "\\x07"),
        ("\x9b", "\\x9b"),  # C1: the same as ESC [
        ("\u202e", "\\u202e"),
        ("\u2066", "\\u2066"),
        ("\u200f", "\\u200f"),
        ("\u2028", "\\u2028"),
        ("\n", "\\n"),
        ("\udc80", "\\udc80"),  # of a file's name that is no UTF-8
        ("é", "é"),
        ("漢", "漢"),
        ("[red]", "[red]"),
    ],
)
def test_no_terminal_takes_a_text_for_a_command(letter: str, words: str) -> None:
    assert escape_unprintable(f"a{letter}b") == f"a{words}b"
    assert shortened(f"a{letter}b").replace(" ", "") in (f"a{words}b", "ab")
    assert shortened(f"a{letter}b").isprintable()
