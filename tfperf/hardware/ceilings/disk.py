"""How fast a file comes from the disk, and not from the memory in which the system keeps files."""

import contextlib
import fcntl
import mmap
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import BinaryIO

from tfperf.errors import HardwareError
from tfperf.hardware.repeating import Repeats

__all__ = ["file_on_disk", "read_disk"]

PIECE = 4 * 2**20
"""Bytes of one read from front to back."""

ROUNDS = 8
"""Rounds of reading from front to back, of which the best counts."""

SPARE = 4
"""The disk must have room for so many times the file."""


@contextlib.contextmanager
def file_on_disk(folder: str | Path, size: int) -> Iterator[Path]:
    """Write a file of random bytes that has reached the disk; it is gone afterwards.

    Args:
        folder: on the disk in question.
        size: bytes of the file.

    Raises:
        HardwareError: there is no room, or no right to write.
    """
    path = None
    try:
        try:
            if (free := shutil.disk_usage(folder).free) < SPARE * size:
                wanted = f"expected {SPARE * size:,} free bytes on the disk of {folder}, {SPARE} times the file"
                raise HardwareError(f"{wanted}; there are {free:,}")
            with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
                path = Path(file.name)
                for begin in range(0, size, PIECE):
                    file.write(os.urandom(min(PIECE, size - begin)))  # a disk that compresses would be too fast
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise HardwareError(f"cannot write a file in {folder}: {error.strerror or error}") from error
        yield path
    finally:
        if path:
            path.unlink(missing_ok=True)


def read_disk(folder: Path, size: int = 128 * 2**20, seconds: float = 3.0) -> Repeats | None:
    """Write a file, and read it past the system's cache; it is gone afterwards.

    Under a hypervisor its cache may still answer in the disk's place. The median of a round, the best of eight rounds.

    Args:
        folder: on the disk in question; made if missing.
        size: bytes of the file.
        seconds: at most, for writing and for reading.

    Returns:
        Seconds of a byte, as one reader finds who waits for each read; a disk can serve several at once.
        None where it cannot be told: no room, no right to write, or a file system without reads past the cache,
        as one in memory.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(folder).free < SPARE * size:
            return None
        with tempfile.TemporaryFile(dir=folder) as file:
            written = _write(file, size, seconds)
            if written < PIECE:
                return None
            flags = fcntl.fcntl(file, fcntl.F_GETFL)
            fcntl.fcntl(file, fcntl.F_SETFL, flags | os.O_DIRECT)
            rounds = tuple(_read(file, written, seconds / ROUNDS) / PIECE for _ in range(ROUNDS))
            return Repeats("disk, front to back", rounds)
    except OSError:
        return None


def _write(file: BinaryIO, size: int, seconds: float) -> int:
    """Bytes written, as many as the time allows; they have reached the disk."""
    piece, until = os.urandom(PIECE), time.perf_counter() + seconds  # a disk that compresses would be too fast
    written = 0
    while written < size and time.perf_counter() < until:
        written += os.write(file.fileno(), piece)
        os.fsync(file.fileno())
    with contextlib.suppress(OSError):
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return written // PIECE * PIECE


def _read(file: BinaryIO, written: int, seconds: float) -> float:
    """Median seconds of a piece, as many as the time allows."""
    taken, until = [], time.perf_counter() + seconds
    with mmap.mmap(-1, PIECE) as buffer:  # a read past the cache wants memory that begins where a page does
        for offset in range(0, written, PIECE):
            start = time.perf_counter()
            os.preadv(file.fileno(), [buffer], offset)
            taken.append(time.perf_counter() - start)
            if time.perf_counter() > until:
                break
    return median(taken)
