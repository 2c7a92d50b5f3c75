"""Files are written whole or not at all."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

__all__ = ["writing_whole"]


@contextlib.contextmanager
def writing_whole(path: Path) -> Iterator[BinaryIO]:
    """Open a file for binary writing that appears at `path` complete, or not at all.

    The bytes go to a temporary file in the same folder, reach the disk, and are then renamed over
    `path` in one step. When the block raises, `path` keeps what it held before. Several processes
    may write the same path at once: one of them wins, whole.

    Raises:
        OSError: the folder does not exist, is not writable, or the disk is full.
    """
    path = Path(path)
    descriptor, temporary_name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    temporary = Path(temporary_name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())  # mkstemp made it private; a result is an ordinary file
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _umask() -> int:
    """The process's file mode mask, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _sync_folder(folder: Path) -> None:
    """Make a rename in `folder` survive a power cut, where the system can."""
    with contextlib.suppress(OSError):  # some file systems refuse to open or sync a folder
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
