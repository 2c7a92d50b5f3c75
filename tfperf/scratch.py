"""A folder for as long as a process lives, and no longer though it be killed."""

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tfperf.files import GRACE

__all__ = ["scratch_folder"]

LOCK = ".held"


@contextlib.contextmanager
def scratch_folder(prefix: str) -> Iterator[Path]:
    """Make a temporary folder; those that killed processes of this user have left go.

    Args:
        prefix: of its name, which nothing else uses.

    Raises:
        OSError: there is no place for it.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            folder = _opened(stack, left, os.O_RDONLY | os.O_DIRECTORY)
            lock = _opened(stack, LOCK, os.O_RDWR, within=folder)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # held as long as its process lives
            if time.time() - os.fstat(lock).st_mtime > GRACE:
                shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix) as name, (Path(name) / LOCK).open("w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield Path(name)


def _opened(stack: contextlib.ExitStack, path: Path | str, flags: int, within: int | None = None) -> int:
    """A file or folder of this user, no link; in a folder that others share, theirs may have any name.

    Raises:
        OSError: it is something else.
    """
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=within)
    stack.callback(os.close, descriptor)
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid() or not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise PermissionError(f"expected a file or folder of this user. Received: {path}")
    return descriptor
