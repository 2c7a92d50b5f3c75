"""The C++ compiler and make that Horovod's build will use, tried before the build starts."""

import dataclasses
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tfperf.errors import HorovodError
from tfperf.processes import run

__all__ = ["Compiler", "check_make", "find_compiler", "output_of"]

OLDEST = {"gcc": 9, "clang": 9, "appleclang": 11}
"""Compiler -> first major version whose C++17 library is whole: `<filesystem>` without a library of its own."""

HOW_TO_INSTALL = "apt-get install g++ make (Debian, Ubuntu), dnf install gcc-c++ make (Fedora), xcode-select --install"

TRY_S = 60.0
"""Seconds that a compiler may take for a few lines."""

PROGRAM = b"""\
#include <filesystem>
#include <optional>
int main() { return std::optional(std::filesystem::path("x"))->empty(); }
"""


@dataclasses.dataclass(frozen=True)
class Compiler:
    """A C++ compiler.

    Attributes:
        command: as it is called; CXX may name more than one word, such as `ccache g++`.
        name: "gcc", "clang" or "appleclang".
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
    if "__apple_build_version__" in macros:
        name, parts = "appleclang", ("__clang_major__", "__clang_minor__", "__clang_patchlevel__")
    elif "__clang__" in macros:
        name, parts = "clang", ("__clang_major__", "__clang_minor__", "__clang_patchlevel__")
    else:
        name, parts = "gcc", ("__GNUC__", "__GNUC_MINOR__", "__GNUC_PATCHLEVEL__")
    version = ".".join(macros.get(part, "0") for part in parts)
    if int(version.split(".")[0]) < OLDEST[name]:
        raise HorovodError(
            f"expected {name} {OLDEST[name]} or later, for C++17; {shlex.join(command)} is {name} {version}; "
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


def output_of(command: Sequence[str], given: bytes = b"") -> tuple[int, str]:
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
    code, words = output_of([*command, "-dM", "-E", "-x", "c++", "-"])
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
        code, words = output_of(command, PROGRAM)
    if code != 0:
        errors = [line for line in words.splitlines() if "error" in line] or [_last_line(words)]
        raise HorovodError(
            f"expected {compiler} to compile and link a few lines of C++17, but: {errors[0]}; "
            f"install what it lacks: {HOW_TO_INSTALL}"
        )


def _last_line(words: str) -> str:
    return (words.splitlines() or ["it said nothing"])[-1]
