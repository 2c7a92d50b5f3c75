"""Every error that tfperf raises on purpose, and how it tells those of others.

::

    TfperfError                 the message is one line: what was expected, what came, what to do
    ├── CacheError              there is no place for the cache, or others could change what is loaded from it
    ├── DataError               a data set is missing, corrupt or out of reach
    ├── MeasurementError        a measurement cannot be made, or cannot answer what was asked of it
    ├── ResultFileError         a result file cannot be read or written
    ├── ExportError             a model cannot be read, exported or verified
    ├── EngineError             an engine is missing, cannot take a net, or gives other outputs than the net
    │   └── ThreadsError        TensorFlow has started with other threads; a fresh process can choose them
    ├── HardwareError           what a net asks of a machine, or what that can give, cannot be told
    ├── HorovodError            Horovod is missing or cannot be built, or its ranks disagree
    ├── SearchError             a search for the best plan cannot be made
    └── RecipeError             a recipe is unknown, or its header or flags are wrong

A wrong argument to a function is a plain ValueError or TypeError, as everywhere in Python.
The command line turns each of these into one line and exit code 2.
"""

import re

__all__ = [
    "CacheError",
    "DataError",
    "EngineError",
    "ExportError",
    "HardwareError",
    "HorovodError",
    "MeasurementError",
    "RecipeError",
    "ResultFileError",
    "SearchError",
    "TfperfError",
    "ThreadsError",
    "error_message",
    "escape_unprintable",
    "in_one_line",
    "shortened",
]

BAD_INPUT = 2
"""Exit code after bad input, as POSIX shells and argparse have it."""

INTERRUPTED = 130
"""Exit code after Ctrl-C, as a shell has it: 128 + SIGINT."""

MOST_LETTERS = 300
"""Letters of another library's error message that are shown."""

_ESCAPE_CODE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
"""A code by which a program colours a terminal (ECMA-48, 5.4)."""


class TfperfError(Exception):
    """Base of every error that tfperf raises on purpose."""


class CacheError(TfperfError):
    """There is no place for the cache, or others could change what is loaded from it."""


class DataError(TfperfError):
    """A data set is missing, corrupt or out of reach."""


class MeasurementError(TfperfError):
    """A measurement cannot be made, or cannot answer what was asked of it."""


class ResultFileError(TfperfError):
    """A result file cannot be read or written."""


class ExportError(TfperfError):
    """A model cannot be read, exported or verified."""


class EngineError(TfperfError):
    """An engine is missing, cannot take a net, or gives other outputs than the net."""


class ThreadsError(EngineError):
    """TensorFlow has started with other threads; a fresh process can choose them."""


class HardwareError(TfperfError):
    """What a net asks of a machine, or what that can give, cannot be told."""


class HorovodError(TfperfError):
    """Horovod is missing or cannot be built, or its ranks disagree."""


class RecipeError(TfperfError):
    """A recipe is unknown, or its header or flags are wrong."""


class SearchError(TfperfError):
    """A search for the best plan cannot be made."""


def in_one_line(error: BaseException) -> str:
    """Give what another library raised: its kind, and the beginning of its message."""
    return f"{type(error).__name__}: {shortened(error)}"


def error_message(error: Exception) -> str:
    """Give the message of an error; of one of the system with the file it is about, where it knows."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror


def shortened(message: object, most: int = MOST_LETTERS, *, keep_end: bool = False) -> str:
    """Give another library's message in one line of whole words, without what a terminal takes for a command.

    Args:
        message: an error, or its text.
        most: letters that are kept, at most.
        keep_end: whether the end is kept, where a library puts the cause last; else the beginning.
    """
    words = [escape_unprintable(word) for word in _ESCAPE_CODE.sub("", str(message)).split()]
    if keep_end:
        words.reverse()
    kept: list[str] = []
    for word in words:
        if len(" ".join([*kept, word])) > most:
            kept = [*kept, "..."] if kept else [word[:most]]
            break
        kept.append(word)
    return " ".join(reversed(kept) if keep_end else kept)


def escape_unprintable(text: object) -> str:
    """The text in one line that no terminal takes for a command: other characters as Python escapes them."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in str(text))
