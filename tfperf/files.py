"""Files are written whole or not at all; a scratch folder lasts as long as its process, though that be killed."""

import contextlib
import ctypes
import errno
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

__all__ = [
    "GRACE",
    "check_space",
    "is_foreign",
    "remove_parts",
    "scratch_folder",
    "why_not_writable",
    "writing_folder_once",
    "writing_folder_whole",
    "writing_whole",
]

PART = ".part"
"""What the names of temporary files and folders end with; a lock is on each, for as long as its process lives."""

GRACE = 60.0
"""Seconds for a process between making a temporary file or folder and holding it."""

LOCK = ".held"
"""A file in a scratch folder; a lock is on it, for as long as its process lives."""

LITTLE = 2**16
"""Bytes free below which a disk is full: less than what libraries write at once."""

AT_FDCWD = -100
RENAME_EXCHANGE = 2


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
    descriptor, temporary_name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=PART, dir=path.parent)
    temporary = Path(temporary_name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            _hold(descriptor)
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())  # mkstemp made it private; a result is an ordinary file
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        _name(error, path)
        raise
    _sync_names(path.parent)


@contextlib.contextmanager
def writing_folder_whole(path: Path, *, replace: bool = True) -> Iterator[Path]:
    """Fill a folder that appears at `path` complete, or not at all.

    Gives the folder to write into: a temporary one beside `path`, renamed at the end. When the block
    raises, `path` keeps what it held before. Folders on the way to `path` are made.

    An old folder and the new one change places in one step, where the system can; elsewhere there is a moment
    with neither of them.

    Args:
        path: of the folder.
        replace: a folder that stands there; otherwise one that is not empty stays, and this fails.

    Raises:
        OSError: the place is not writable, the disk is full, `path` is a file, or a folder that is to stay.
    """
    path = Path(path)
    with _aside(path) as aside:
        new, old = aside / "new", aside / "old"
        new.mkdir()
        yield new
        _sync_all(new)
        if not (replace and path.exists() and _exchange(new, path)):
            if replace and path.exists():
                path.rename(old)  # a folder that is not empty cannot be renamed over
            try:
                new.rename(path)
            except BaseException:
                if old.exists():
                    old.rename(path)
                raise
        _sync_names(path.parent)


@contextlib.contextmanager
def writing_folder_once(path: Path) -> Iterator[Path]:
    """Fill a folder as `writing_folder_whole` does, for this user alone, and only if no other process is faster.

    What another process has put there meanwhile stays: it is made of the same, and somebody may be reading it.

    Raises:
        OSError: the place is not writable, the disk is full, or `path` is a file.
    """
    path = Path(path)
    with _aside(path) as aside:
        new = aside / "new"
        new.mkdir(mode=0o700)
        yield new
        _sync_all(new)
        try:
            new.rename(path)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
        _sync_names(path.parent)


def remove_parts(folder: Path) -> None:
    """Remove what processes that were killed have left half written in a folder; what others write stays."""
    for part in folder.glob(f".*{PART}"):
        with contextlib.suppress(OSError):
            descriptor = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # held as long as its process lives
                if time.time() - os.fstat(descriptor).st_mtime <= GRACE:
                    continue
                if not part.is_dir():
                    part.unlink()
                elif not (part / "old").exists():  # which may be the only copy there is
                    shutil.rmtree(part)
            finally:
                os.close(descriptor)


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
        _hold(file.fileno())
        yield Path(name)


def is_foreign(status: os.stat_result) -> bool:
    """Whether a file belongs to neither this user nor root, so that its owner can change it at any time."""
    return status.st_uid not in (os.geteuid(), 0)


def check_space(folder: Path, error: Exception) -> None:
    """Raise what the system would, if an error comes of a full disk.

    Other libraries tell that in words of their own, or not at all.

    Raises:
        OSError: it does.
    """
    left = os.statvfs(folder)
    no_files = left.f_files > 0 and left.f_favail == 0
    words = os.strerror(errno.ENOSPC)
    if words in str(error) or no_files or left.f_bavail * left.f_frsize < LITTLE:
        raise OSError(errno.ENOSPC, words, str(folder)) from error


def why_not_writable(path: Path) -> str | None:
    """Why a file cannot be written there, in words, before minutes of work are spent on it; None: it can."""
    if path.is_dir():
        return f"expected a file, {path} is a folder"
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    return None if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK) else f"cannot write in {folder}"


@contextlib.contextmanager
def _aside(path: Path) -> Iterator[Path]:
    """A temporary folder beside `path`, held by this process meanwhile."""
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        aside = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=PART, dir=path.parent))
        stack.callback(shutil.rmtree, aside, ignore_errors=True)
        descriptor = os.open(aside, os.O_RDONLY)
        stack.callback(os.close, descriptor)
        _hold(descriptor)
        try:
            yield aside
        except OSError as error:
            _name(error, path)
            raise


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


def _name(error: BaseException, path: Path) -> None:
    """Have the error of a write, to which the system gives no name, say where it was."""
    if isinstance(error, OSError) and error.errno is not None and error.filename is None:
        error.filename = str(path)


def _hold(descriptor: int) -> None:
    """Have those that look for what was left leave a file or folder alone, where the file system has locks."""
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def _exchange(one: Path, other: Path) -> bool:
    """Have two files or folders change their names in one step; False: the system or the file system cannot."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    names = (AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other))
    return rename is not None and rename(*names, RENAME_EXCHANGE) == 0


def _umask() -> int:
    """The process's file mode mask, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _sync_all(folder: Path) -> None:
    """Make all that is in a folder survive a power cut.

    Raises:
        OSError: it does not reach the disk, as where that is full.
    """
    for path in folder.rglob("*"):
        if path.is_dir():
            _sync_names(path)
        elif path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
    _sync_names(folder)


def _sync_names(folder: Path) -> None:
    """Make the renames in a folder survive a power cut, where the system can."""
    with contextlib.suppress(OSError):  # some file systems refuse to open or sync a folder
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
