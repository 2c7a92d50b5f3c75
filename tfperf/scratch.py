"""A folder for as long as a process lives, and no longer though it be killed."""

import contextlib
import fcntl
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

__all__ = ["scratch_folder"]

LOCK = ".held"

GRACE = 60.0
"""Seconds for a process between making its folder and holding it."""


@contextlib.contextmanager
def scratch_folder(prefix: str) -> Iterator[Path]:
    """Make a temporary folder; those that killed processes have left go.

    Args:
        prefix: of its name, which nothing else uses.

    Raises:
        OSError: there is no place for it.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with contextlib.suppress(OSError), (left / LOCK).open("r+") as lock:  # another user's is left alone
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # held as long as its process lives
            if time.time() - (left / LOCK).stat().st_mtime > GRACE:
                shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix) as name, (Path(name) / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield Path(name)
