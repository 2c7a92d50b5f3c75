"""The wheels that were built, each in a folder named by what it was built from."""

import contextlib
import fcntl
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tfperf.errors import HorovodError
from tfperf.files import writing_whole
from tfperf.parallel.horovod_build.plan import VERSION

__all__ = ["LOG_NAME", "find_wheel", "has_extension", "keep", "locked"]

LOG_NAME = "build.log"
"""The output of the last build of a key, beside its wheel or in the wheel's stead."""


def find_wheel(cache: Path, key: str) -> Path | None:
    """The whole wheel that is kept under a key, or None."""
    wheels = sorted((cache / key).glob(f"horovod-{VERSION}-*.whl"))
    return next((wheel for wheel in wheels if has_extension(wheel)), None)


def has_extension(wheel: Path) -> bool:
    """Whether a file is a wheel with Horovod's extension for TensorFlow in it."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return False
    return any(name.startswith("horovod/tensorflow/mpi_lib") and name.endswith(".so") for name in names)


def keep(file: Path, cache: Path, key: str, name: str) -> Path:
    """Copy a file into a key's folder, whole or not at all; return where it is now.

    Raises:
        OSError: the cache cannot be written.
    """
    kept = cache / key / name
    kept.parent.mkdir(parents=True, exist_ok=True)
    with file.open("rb") as source, writing_whole(kept) as target:
        shutil.copyfileobj(source, target)
    return kept


@contextlib.contextmanager
def locked(cache: Path, say: Callable[[str], object]) -> Iterator[bool]:
    """Be the only one of this user's installs while the block runs; give whether another one had to be waited for.

    A build takes all cores, and two installs into one environment would write the same files. The lock ends
    with its process, however that ends.

    Raises:
        HorovodError: the cache cannot be written.
    """
    try:
        cache.mkdir(parents=True, exist_ok=True)
        file = (cache / "lock").open("ab")
    except OSError as error:
        raise HorovodError(
            f"expected to write to the cache {cache}: {error.strerror}; set TFPERF_CACHE to a folder of your own"
        ) from error
    with file:
        waited = False
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waited = True
            say("another `tfperf horovod install` is at work; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield waited
