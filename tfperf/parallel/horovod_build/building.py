"""Horovod's wheel, built by pip from the source distribution with build tools of its own."""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from tfperf.errors import HorovodError
from tfperf.parallel.horovod_build.build_log import first_error
from tfperf.parallel.horovod_build.child import follow
from tfperf.parallel.horovod_build.headers import include_folders, write_forwarding_headers
from tfperf.parallel.horovod_build.libraries import Nccl
from tfperf.parallel.horovod_build.plan import NOT_INHERITED, VERSION, Plan
from tfperf.parallel.horovod_build.wheel_cache import LOG_NAME, has_extension, keep

__all__ = ["build"]

SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
"""The SHA-256 of PyPI's horovod-0.28.1.tar.gz; pip (tried: 23.0 to 26.3) refuses another file before its code runs."""

TOOLS = ("setuptools>=70,<81", "wheel", "cmake>=3.18,<4", "packaging", "cloudpickle", "psutil", "pyyaml")
"""What builds it. Its setup.py needs pkg_resources, gone in setuptools 82, and asks for its runtime needs too; the
Gloo that it carries is for a CMake before 4."""

NEEDED_BYTES = 2**30
"""Room that a build may take in the temporary folder: tools 200 MB, objects and wheel the rest."""


def build(plan: Plan, cache: Path, jobs: int, on_line: Callable[[str], object]) -> Path:
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
        with log_file.open("wb") as log:
            problem = _build(plan, work, jobs, log, on_line)
        kept_log = keep(log_file, cache, plan.key, LOG_NAME)
        if problem is not None:
            with kept_log.open(errors="replace", encoding="utf-8") as lines:
                raise HorovodError(f"{problem}: {first_error(lines)}; the whole log is {kept_log}")
        (wheel,) = (work / "wheel").glob("*.whl")
        if not has_extension(wheel):
            raise HorovodError(f"Horovod's build made a wheel without its TensorFlow extension; its log is {kept_log}")
        return keep(wheel, cache, plan.key, wheel.name)


def _build(plan: Plan, work: Path, jobs: int, log: BinaryIO, on_line: Callable[[str], object]) -> str | None:
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
    if follow([*pip, "install", "--target", str(tools), *TOOLS], base, log, on_line) != 0:
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
    code = follow(command, environment, log, on_line)
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
