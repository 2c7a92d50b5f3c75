"""Horovod brought into this environment: found there, or in the cache, or built."""

import contextlib
import dataclasses
import enum
import errno
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path

from tfperf.errors import HorovodError
from tfperf.parallel.horovod_build.build_log import first_error, follow, showing_progress
from tfperf.parallel.horovod_build.build_plan import VERSION, BuildPlan
from tfperf.parallel.horovod_build.building import build, find_wheel, locked
from tfperf.parallel.horovod_build.installed import InstalledHorovod, find_horovod
from tfperf.parallel.horovod_build.requirements import (
    NEWEST_TRIED,
    InstalledTensorFlow,
    check_make,
    check_tensorflow,
    find_compiler,
    find_mpi,
    find_nccl,
    find_tensorflow,
)
from tfperf.system import usable_cores

__all__ = ["Source", "Wanted", "install"]

NEEDS = ("cloudpickle", "psutil", "pyyaml", "packaging")
"""What Horovod imports; it names no versions."""


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What a Horovod shall have beside Gloo: MPI, NCCL for GPUs."""

    mpi: bool = False
    nccl: bool = False

    def is_met_by(self, horovod: InstalledHorovod) -> bool:
        """Whether an installed Horovod works here and has all of it."""
        if horovod.version != VERSION or horovod.problem is not None:
            return False
        operations = {"gloo", *(["mpi"] if self.mpi else []), *(["nccl"] if self.nccl else [])}
        return operations <= set(horovod.built_with)


class Source(enum.Enum):
    """Where the Horovod came from."""

    HERE = "installed already"
    CACHE = "installed from the cache"
    BUILD = "built and installed"


def install(
    cache: Path,
    wanted: Wanted = Wanted(),  # immutable
    *,
    rebuild: bool = False,
    jobs: int | None = None,
    terminal: bool = False,
    say: Callable[[str], object] = print,
) -> tuple[InstalledHorovod, Source]:
    """See that Horovod 0.28.1 works in this environment, with what is wanted.

    One that works is left as it is, a wheel in the cache is installed, else one is built: about two minutes on
    two cores. Several installs at once wait for each other.

    Args:
        cache: the folder of wheels.
        wanted: what it shall have.
        rebuild: whether to build in any case.
        jobs: how many files to compile at once; by default as many as there are cores for this process.
        terminal: whether a progress bar can be drawn.
        say: gets what a person should know, a line at a time.

    Returns:
        The Horovod, and where it came from.

    Raises:
        HorovodError: this machine or environment cannot build or hold it; the message says what to install.
    """
    if not rebuild and (here := _working(wanted)):
        return here, Source.HERE
    with _one_line_for_disk(), locked(cache, say) as waited:
        if waited and not rebuild and (here := _working(wanted)):
            return here, Source.HERE
        _check_environment()
        plan = _plan(check_tensorflow(find_tensorflow()), wanted, say)
        wheel = None if rebuild else find_wheel(cache, plan.key)
        source = Source.CACHE if wheel else Source.BUILD
        if wheel is None:
            check_make()
            jobs = jobs or usable_cores()
            say(
                f"building Horovod {VERSION} for TensorFlow {plan.tensorflow.version} with {plan.compiler}, "
                f"{jobs} {'file' if jobs == 1 else 'files'} at once: about 2 minutes on 2 cores"
            )
            with showing_progress(terminal) as on_line:
                wheel = build(plan, cache, jobs, on_line)
        _install(wheel)
        here = find_horovod()
    if here is None or not wanted.is_met_by(here):
        found = f"it is {here}" if here else "it is not there"
        raise HorovodError(
            f"Horovod was installed from {wheel}, but {(here and here.problem) or found}; "
            "`tfperf horovod install --rebuild` builds it anew"
        )
    return here, source


def _working(wanted: Wanted) -> InstalledHorovod | None:
    """The Horovod of this environment if it works here and has what is wanted."""
    here = find_horovod()
    return here if here and wanted.is_met_by(here) else None


@contextlib.contextmanager
def _one_line_for_disk() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        remedy = (
            "make room, or set TMPDIR and TFPERF_CACHE to a larger disk"
            if error.errno == errno.ENOSPC
            else ("set TMPDIR and TFPERF_CACHE to folders that you may write")
        )
        raise HorovodError(f"Horovod cannot be installed: {error.strerror or error}{where}; {remedy}") from error


def _plan(tensorflow: InstalledTensorFlow, wanted: Wanted, say: Callable[[str], object]) -> BuildPlan:
    if tensorflow.minor_version > NEWEST_TRIED:
        tried = ".".join(map(str, NEWEST_TRIED))
        say(f"TensorFlow {tensorflow.version} is newer than {tried}, the last that this was tried with; trying")
    compiler = find_compiler()
    mpi, nccl = find_mpi() if wanted.mpi else None, find_nccl() if wanted.nccl else None
    cuda = tensorflow.cuda_version()
    if nccl and cuda is None:
        say(f"{tensorflow.distribution} {tensorflow.version} was built without CUDA: its tensors are never on a GPU")
    elif nccl and cuda and cuda.split(".")[0] != nccl.cuda.split(".")[0]:
        say(f"TensorFlow was built with CUDA {cuda} and nvcc is of {nccl.cuda}: both must suit the GPU's driver")
    return BuildPlan.here(tensorflow, compiler, mpi, nccl)


def _check_environment() -> None:
    """See that a Horovod can be built for this system and installed into this environment."""
    if sys.platform != "linux":
        raise HorovodError(f"expected Linux, found {sys.platform}: Horovod {VERSION} cannot be built here")
    if importlib.util.find_spec("pip") is None:
        raise HorovodError(
            f"expected pip in this environment, {sys.prefix}, found none; {sys.executable} -m ensurepip --upgrade"
        )
    if sys.prefix == sys.base_prefix and Path(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED").exists():
        raise HorovodError(
            "expected a virtual environment, found the system's own Python, which its package manager guards; "
            "python3 -m venv .venv, and install tfperf there"
        )
    site = sysconfig.get_path("platlib")
    if not os.access(site, os.W_OK):
        raise HorovodError(
            f"expected to write to {site}, but may not; use a virtual environment of your own: python3 -m venv .venv"
        )


def _install(wheel: Path) -> None:
    """Install what Horovod imports where it is missing, then the wheel in the place of any other Horovod."""
    missing = [name for name in NEEDS if not _is_there(name)]
    if missing:
        _pip(["install", *missing])
    _pip(["install", "--force-reinstall", "--no-deps", "--no-index", str(wheel)])


def _is_there(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _pip(arguments: Sequence[str]) -> None:
    lines: list[str] = []
    environment = os.environ | {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "LC_ALL": "C"}
    if follow([sys.executable, "-m", "pip", *arguments], environment, lines.append) != 0:
        raise HorovodError(f"pip {' '.join(arguments)} failed: {first_error(lines)}")
