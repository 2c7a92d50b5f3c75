"""Where tfperf keeps what it downloaded, built or converted; all of it can be made again, so it may be deleted.

Some of it is code that engines run: so it lies where only this user, or root, can write. It does not grow without end:
of what was converted, what was used longest ago goes first, and the journal of a search that was interrupted goes when
nobody has gone on with it for 30 days.
"""

import contextlib
import fcntl
import os
import pwd
import shlex
import shutil
import stat
import tempfile
import time
import weakref
from pathlib import Path

from tfperf.errors import CacheError
from tfperf.files import PART, is_foreign, remove_parts

__all__ = [
    "Uses",
    "cache_bound",
    "cache_bytes",
    "cache_fault",
    "cache_folder",
    "cache_place",
    "home_folder",
    "keep_within_bound",
    "remove_given_up",
]

GIB = 2**30

BOUND_GIB = 8.0
"""Size of the cache beyond which conversions are removed, unless TFPERF_CACHE_GIB has another."""

LATELY = 600.0
"""Seconds since its last use for which a folder counts as in use: some time lies between making and loading it."""

LOCK = ".lock"
"""What the name of a lock has beyond that of its journal."""

GIVEN_UP = 30 * 86400.0
"""Seconds since a journal was last written after which nobody is expected to go on with its search."""

ANOTHER = "set TFPERF_CACHE to a folder of your own"


def cache_place() -> Path:
    """Where the cache is, or would be: $TFPERF_CACHE, else $XDG_CACHE_HOME/tfperf, else ~/.cache/tfperf.

    An XDG_CACHE_HOME that is not absolute is ignored, as the XDG base directory specification asks.

    Raises:
        CacheError: there is no home folder.
    """
    own, shared = (os.environ.get(name, "") for name in ("TFPERF_CACHE", "XDG_CACHE_HOME"))
    if own and own.split("/")[0] != "~":
        return Path(os.path.expanduser(own)).absolute()  # noqa: PTH111  # Path.expanduser raises without a home
    if not own and Path(shared).is_absolute():
        return Path(shared) / "tfperf"
    home = home_folder()
    if home is None:
        raise CacheError(f"expected a home folder for the cache; {ANOTHER}")
    return home / own[2:] if own else home / ".cache" / "tfperf"


def home_folder() -> Path | None:
    """The user's: $HOME, or what the system knows; None: there is none."""
    named = Path(os.environ.get("HOME", ""))
    if named.is_absolute():
        return named
    with contextlib.suppress(KeyError):
        known = Path(pwd.getpwuid(os.getuid()).pw_dir)
        return known if known.is_absolute() and known.is_dir() else None
    return None


def cache_folder(room: str | None = None) -> Path:
    """A folder that nobody but this user and root can write: the cache, or one of its folders; made now if missing.

    What processes that were killed have left half written there goes.

    Args:
        room: name of a folder in the cache; None: the cache itself.

    Raises:
        CacheError: there is no place for it, or others could change what is in it; says what to do.
    """
    root = cache_place()
    folder = root / room if room else root
    try:
        for one in (root, folder):
            one.mkdir(mode=0o700, parents=True, exist_ok=True)
        fault = cache_fault(root)
        if fault is None:
            for one in _folders(root):
                remove_parts(one)
    except OSError as error:
        raise CacheError(f"expected to write to the cache {root}: {error.strerror}; {ANOTHER}") from error
    if fault is not None:
        raise CacheError(fault)
    return folder


def cache_fault(root: Path) -> str | None:
    """Who could change what is loaded from the cache, and what to do about it; None: this user and root alone.

    Raises:
        OSError: it is not there, or cannot be read.
    """
    closed = not root.stat().st_mode & (stat.S_IXGRP | stat.S_IXOTH)  # then nobody else gets to what is in it
    for folder in _folders(root):
        with contextlib.suppress(FileNotFoundError):
            if fault := _fault(folder, folder.stat(), root, closed=closed and folder != root):
                return fault
    return None


def cache_bytes(root: Path) -> int:
    """Size of all files in a folder; 0: it is not there."""
    return sum(_status(Path(folder, name)).st_size for folder, _, names in os.walk(root) for name in names)


def cache_bound() -> int:
    """Bytes that the cache may have: $TFPERF_CACHE_GIB, else 8 GiB.

    Raises:
        CacheError: the variable is no such number.
    """
    named = os.environ.get("TFPERF_CACHE_GIB") or BOUND_GIB
    with contextlib.suppress(ValueError, OverflowError):
        if (bound := float(named) * GIB) >= 0:
            return int(bound)
    raise CacheError(f"expected TFPERF_CACHE_GIB to be a number of GiB, as 8. Received: {named!r}")


def keep_within_bound(room: Path) -> None:
    """Remove what was used longest ago from a folder of the cache, until the cache is within its bound.

    What a `Uses` of any process holds stays, and what was used in the last 10 minutes.
    """
    excess = cache_bytes(room.parent) - cache_bound()
    if excess <= 0:
        return
    entries = [(_status(path).st_mtime, path) for path in room.iterdir() if not path.name.startswith(".")]
    for last_use, path in sorted(entries):
        if excess <= 0 or time.time() - last_use < LATELY:
            return
        size = cache_bytes(path)
        if _removed(path):
            excess -= size


class Uses:
    """Folders of the cache that are not removed for as long as this lives. Threads may share it."""

    def __init__(self) -> None:
        """Use nothing yet."""
        self._descriptors: dict[Path, int] = {}
        weakref.finalize(self, _close_all, self._descriptors)

    def take(self, folder: Path) -> bool:
        """Whether the folder is there; then it stays.

        Raises:
            CacheError: others could change what is in it.
        """
        if folder in self._descriptors:
            return folder.is_dir()
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except (FileNotFoundError, NotADirectoryError):
            return False
        if not self._hold(folder, descriptor) or self._descriptors.setdefault(folder, descriptor) != descriptor:
            os.close(descriptor)
        return folder in self._descriptors

    def _hold(self, folder: Path, descriptor: int) -> bool:
        if fault := _fault(folder, os.fstat(descriptor), folder):
            os.close(descriptor)
            raise CacheError(fault)
        with contextlib.suppress(OSError):  # a file system without locks, or one that is read only
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            os.utime(descriptor)
        return _status(folder).st_ino == os.fstat(descriptor).st_ino  # else it was removed meanwhile


def remove_given_up(journals: Path) -> None:
    """Remove the journals of searches in a folder that nobody holds and nobody has written for 30 days.

    A lock lies beside each (`tfperf.search.journal`), and goes with it.
    """
    names = {path.name.removesuffix(LOCK) for path in journals.glob("[!.]*")}
    for journal, lock in ((journals / name, journals / f"{name}{LOCK}") for name in names):
        if time.time() - max(_status(journal).st_mtime, _status(lock).st_mtime) < GIVEN_UP:
            continue
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            if lock.exists():
                descriptor = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW)
                stack.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _removed(journal) or not journal.exists():
                lock.unlink(missing_ok=True)


def _folders(root: Path) -> list[Path]:
    return [root, *(path for path in root.iterdir() if path.is_dir())]


def _fault(folder: Path, status: os.stat_result, root: Path, *, closed: bool = False) -> str | None:
    """Who else could change what is in a folder, and what to do about it."""
    own = shlex.quote(str(root))
    if is_foreign(status):
        whose = f"expected the cache {folder} to belong to this user or to root; it is of user {status.st_uid}"
        return f"{whose}: chown -R $(id -u) {own} if you trust what is in it, or {ANOTHER}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not closed:
        whose = f"expected the cache {folder} to be written by nobody else; its mode is {status.st_mode & 0o7777:o}"
        return f"{whose}: chmod -R go-w {own} if you trust what is in it, or {ANOTHER}"
    return None


def _removed(folder: Path) -> bool:
    """Remove a folder in one step, as others see it, unless somebody uses it."""
    with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        stack.callback(os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        aside = tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=PART, dir=folder.parent)
        stack.callback(shutil.rmtree, aside, ignore_errors=True)
        folder.rename(Path(aside, folder.name))
        return True
    return False


def _status(path: Path) -> os.stat_result:
    """A file's own status; that of an empty one, long ago, where it has gone."""
    try:
        return path.lstat()
    except OSError:
        return os.stat_result((0,) * 10)


def _close_all(descriptors: dict[Path, int]) -> None:
    for descriptor in descriptors.values():
        os.close(descriptor)
