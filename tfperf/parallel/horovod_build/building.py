"""Horovod's wheel: built by pip from the source distribution with build tools of its own, and kept."""

import contextlib
import fcntl
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tfperf.errors import HorovodError
from tfperf.files import writing_whole
from tfperf.parallel.horovod_build.build_log import first_error, follow
from tfperf.parallel.horovod_build.build_plan import VERSION, BuildPlan
from tfperf.parallel.horovod_build.requirements import InstalledTensorFlow, Nccl

__all__ = ["build", "find_wheel", "locked"]

SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
"""The SHA-256 of PyPI's horovod-0.28.1.tar.gz; pip (tried: 23.0 to 26.3) refuses another file before its code runs."""

TOOLS = ("setuptools>=70,<81", "wheel", "cmake>=3.18,<4", "packaging", "cloudpickle", "psutil", "pyyaml")
"""What builds it. Its setup.py needs pkg_resources, gone in setuptools 82, and asks for its runtime needs too; the
Gloo that it carries is for a CMake before 4."""

NOT_INHERITED = (
    *("HOROVOD_SKIP_COMPILE", "HOROVOD_LOCAL_VERSION", "HOROVOD_WITHOUT_TENSORFLOW", "HOROVOD_WITHOUT_GLOO"),
    *("HOROVOD_WITH_PYTORCH", "HOROVOD_WITH_MXNET", "HOROVOD_WITH_MPI", "HOROVOD_WITHOUT_MPI", "HOROVOD_CMAKE"),
    *("CMAKE_GENERATOR", "MAKELEVEL", "MFLAGS", "PIP_USER", "PIP_TARGET", "PIP_PREFIX"),
)
"""Variables that would make the build another one than the plan says, such as a surrounding make's jobs."""

NEEDED_BYTES = 2**30
"""Room that a build may take in the temporary folder: tools 200 MB, objects and wheel the rest."""

LOG_NAME = "build.log"
"""The output of the last build of a key, beside its wheel or in the wheel's stead."""

BUILDER = "client/xla_builder.h"
"""The first header of XLA that Horovod includes."""

MOVED = {
    BUILDER: ("hlo/builder/xla_builder.h", "client/xla_builder.h"),
    "service/custom_call_target_registry.h": ("service/custom_call_target_registry.h",),
    "service/hlo.pb.h": ("service/hlo.pb.h",),
    "shape.h": ("shape.h",),
    "xla_data.pb.h": ("xla_data.pb.h",),
}
"""Name below `tensorflow/compiler/xla/` -> names below `xla/` where it may lie now, newest first."""

STREAM = "stream_executor/stream.h"
"""Below `tensorflow/compiler/xla/`: mpi_ops.cc includes it for GPUs, right after it declares the function below."""

STREAM_VALUE = """\
#pragma once
#include "xla/stream_executor/stream.h"
namespace stream_executor::gpu {
inline GpuStreamHandle AsGpuStreamValue(Stream* stream) {
  return static_cast<GpuStreamHandle>(stream->platform_specific_handle().stream);
}
}
"""
"""The function that gives CUDA's stream, which TensorFlow 2.21's libraries no longer have."""

STATUS_OR = """\
#include "absl/status/statusor.h"
namespace xla { template <typename T> using StatusOr = ::absl::StatusOr<T>; }
"""
"""The name that the part for GPUs uses, gone since TensorFlow 2.19 together with its header `xla/statusor.h`."""

INCLUDED_BY_TENSORFLOW = ("external/highwayhash", "external/farmhash_archive/src")
"""Folders of TensorFlow's `include/` from which its own headers include, though they are not on its path."""


def build(plan: BuildPlan, cache: Path, jobs: int, on_line: Callable[[str], object]) -> Path:
    """Build the wheel of a plan and keep it, with the log, in the cache; return where it is.

    All that is written meanwhile lies in one temporary folder, which goes in any case; this environment stays
    as it is.

    Args:
        plan: what to build.
        cache: the folder of all keys.
        jobs: how many files to compile at once.
        on_line: gets each line of the build's output.

    Raises:
        HorovodError: it does not build; the message says why and where the log is.
        OSError: the disk is full, or a folder cannot be written.
    """
    with tempfile.TemporaryDirectory(prefix="tfperf-horovod-", ignore_cleanup_errors=True) as name:
        work = Path(name)
        _check_room(work)
        log_file = work / LOG_NAME
        with log_file.open("w", encoding="utf-8") as log:

            def on_logged(line: str) -> None:
                print(line, file=log)
                on_line(line)

            problem = _build(plan, work, jobs, on_logged)
        kept_log = keep(log_file, cache, plan.key, LOG_NAME)
        if problem is not None:
            with kept_log.open(encoding="utf-8") as lines:
                raise HorovodError(f"{problem}: {first_error(lines)}; the whole log is {kept_log}")
        (wheel,) = (work / "wheel").glob("*.whl")
        if not has_extension(wheel):
            raise HorovodError(f"Horovod's build made a wheel without its TensorFlow extension; its log is {kept_log}")
        return keep(wheel, cache, plan.key, wheel.name)


def _build(plan: BuildPlan, work: Path, jobs: int, on_line: Callable[[str], object]) -> str | None:
    """Build into the folder work/wheel. Return what failed, or None."""
    tools, forwarding, library = work / "tools", work / "include", work / "lib"
    for folder in (forwarding, library, work / "tmp"):
        folder.mkdir()
    write_forwarding_headers(plan.tensorflow, forwarding, gpu=plan.nccl is not None)
    if plan.nccl and plan.nccl.from_pip:
        _name_for_linker(plan.nccl, library)
    base = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
    base |= {"TMPDIR": str(work / "tmp"), "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    pip = [sys.executable, "-m", "pip"]
    if follow([*pip, "install", "--target", str(tools), *TOOLS], base, on_line) != 0:
        return "pip cannot install the tools that build Horovod"
    requirement = work / "horovod.txt"
    requirement.write_text(f"horovod=={VERSION} --hash=sha256:{SHA256}\n", encoding="utf-8")
    environment = plan.environment(
        base,
        tools=tools,
        forwarding=forwarding,
        include=include_folders(plan.tensorflow),
        library=library,
        jobs=jobs,
    )
    command = [*pip, "wheel", "--verbose", "--no-deps", "--no-build-isolation", "--use-pep517", "--no-binary=horovod"]
    command += ["--no-cache-dir"]  # pip's own cache of wheels knows no TensorFlow version
    command += ["--require-hashes", "--requirement", str(requirement), "--wheel-dir", str(work / "wheel")]
    code = follow(command, environment, on_line)
    return None if code == 0 else f"Horovod {VERSION} did not build"


def _name_for_linker(nccl: Nccl, folder: Path) -> None:
    """Give pip's NCCL the one name under which Horovod's CMake finds it, since the package has only libnccl.so.2.

    The file is a linker script and not a link, and named like a static library: for a shared one CMake would
    write this temporary folder into the extension as a place to load libraries from.
    """
    (folder / "libnccl_static.a").write_text(f"INPUT({nccl.library})\n", encoding="utf-8")


def _check_room(folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if free < NEEDED_BYTES:
        raise HorovodError(
            f"expected {NEEDED_BYTES / 2**30:g} GiB free to build Horovod in {folder.parent}, found "
            f"{free / 2**30:.1f}; make room, or set TMPDIR to a larger disk"
        )
    if any(character.isspace() for character in str(folder)):
        raise HorovodError(
            f"expected a temporary folder without spaces in its path, found {str(folder.parent)!r}; set TMPDIR"
        )


def write_forwarding_headers(tensorflow: InstalledTensorFlow, folder: Path, *, gpu: bool) -> None:
    """Write into `folder` the headers that TensorFlow no longer has where Horovod includes them.

    Horovod 0.28.1 compiles with them without a change of its source. Its xla_mpi_ops.cc includes files below
    `tensorflow/compiler/xla/`; XLA's headers lie below `xla/` now. TensorFlow's wheel holds a copy in the old place,
    but what has moved within XLA since is not where Horovod looks: headers of one line, which include the new place,
    stand there instead. Two names that a build for GPUs uses are gone; what they meant stands in such a header too.

    Args:
        tensorflow: the one to compile against.
        folder: it has to come before TensorFlow's own on the path of quoted includes, that is: -iquote.
        gpu: whether the build is for GPUs.

    Raises:
        HorovodError: this TensorFlow has one of them in no place that is known here.
    """
    for old, candidates in MOVED.items():
        if (tensorflow.include / "tensorflow/compiler/xla" / old).exists():
            continue
        new = next((name for name in candidates if (tensorflow.include / "xla" / name).exists()), None)
        if new is None:
            raise HorovodError(
                f"expected xla/{candidates[0]} among TensorFlow's headers, but {tensorflow.distribution} "
                f"{tensorflow.version} has none; Horovod 0.28.1 cannot be built for it: use TensorFlow 2.21"
            )
        header = folder / "tensorflow/compiler/xla" / old
        header.parent.mkdir(parents=True, exist_ok=True)
        without_status = old == BUILDER and not (tensorflow.include / "xla/statusor.h").exists()
        header.write_text(f'#include "xla/{new}"\n{STATUS_OR if without_status else ""}', encoding="utf-8")
    if gpu:
        (folder / "tensorflow/compiler/xla" / STREAM).parent.mkdir(parents=True, exist_ok=True)
        (folder / "tensorflow/compiler/xla" / STREAM).write_text(STREAM_VALUE, encoding="utf-8")


def include_folders(tensorflow: InstalledTensorFlow) -> list[Path]:
    """The folders of TensorFlow that Horovod's compilation needs on its include path, beside the one it finds."""
    folders = [tensorflow.include / name for name in INCLUDED_BY_TENSORFLOW]
    return [folder for folder in folders if folder.is_dir()]


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
