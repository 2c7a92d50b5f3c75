"""Where a report or a plot is to be written: refused before minutes of work are spent on it."""

from pathlib import Path

from tfperf.errors import ResultFileError
from tfperf.files import why_not_writable
from tfperf.measure.words import escape_unprintable

__all__ = ["check_target"]


def check_target(path: Path, what: str, ending: bool, endings: str) -> None:
    """Refuse a file of another kind, or one that cannot be written.

    Args:
        what: is to be written, as "report".
        ending: whether the file's is one of those.
        endings: in words.

    Raises:
        ResultFileError: its ending is none of those, or it cannot be written there.
    """
    shown = escape_unprintable(path)[:200]
    if not ending:
        raise ResultFileError(f"expected a {what}'s file to end in {endings}. Received: {shown}")
    try:
        reason = why_not_writable(path)
    except OSError as error:  # as of a name that is too long
        reason = error.strerror or str(error)
    if reason:
        raise ResultFileError(f"cannot write the {what} {shown}: {escape_unprintable(reason)}")
