"""Files are written whole or not at all."""

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

__all__ = ["why_not_writable", "writing_folder_whole", "writing_whole"]


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
    _sync(path.parent)


@contextlib.contextmanager
def writing_folder_whole(path: Path, *, replace: bool = True) -> Iterator[Path]:
    """Fill a folder that appears at `path` complete, or not at all.

    Gives the folder to write into: a temporary one beside `path`, renamed at the end. When the block
    raises, `path` keeps what it held before. Folders on the way to `path` are made.

    Args:
        path: of the folder.
        replace: a folder that stands there; otherwise one that is not empty stays, and this fails.

    Raises:
        OSError: the place is not writable, the disk is full, `path` is a file, or a folder that is to stay.
    """
    path = Path(path)
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent))
    try:
        new = aside / "new"
        new.mkdir()
        yield new
        for file in new.rglob("*"):
            _sync(file)
        old = aside / "old"
        if replace and path.exists():
            path.rename(old)  # a folder that is not empty cannot be renamed over
        try:
            new.rename(path)
        except BaseException:
            if old.exists():
                old.rename(path)
            raise
        _sync(path.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def why_not_writable(path: Path) -> str | None:
    """Why a file cannot be written there, in words, before minutes of work are spent on it; None: it can."""
    if path.is_dir():
        return f"expected a file, {path} is a folder"
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    return None if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK) else f"cannot write in {folder}"


def _umask() -> int:
    """The process's file mode mask, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _sync(path: Path) -> None:
    """Make a file's content, or the renames in a folder, survive a power cut, where the system can."""
    with contextlib.suppress(OSError):  # some file systems refuse to open or sync a folder
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
