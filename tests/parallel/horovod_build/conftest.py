"""A TensorFlow, a compiler and a pip that the tests write themselves: nothing is built, downloaded or installed."""

import sys
import zipfile
from pathlib import Path

import pytest

from tfperf.parallel.horovod_build.build_plan import USERS_VARIABLES, BuildPlan
from tfperf.parallel.horovod_build.building import INCLUDED_BY_TENSORFLOW, MOVED
from tfperf.parallel.horovod_build.requirements import Compiler, InstalledTensorFlow

MACROS = {
    "gcc": "__GNUC__ {0}\n__GNUC_MINOR__ 2\n__GNUC_PATCHLEVEL__ 0",
    "clang": "__GNUC__ 4\n__clang__ 1\n__clang_major__ {0}\n__clang_minor__ 2\n__clang_patchlevel__ 0",
}


@pytest.fixture(autouse=True)
def no_settings_of_the_user(monkeypatch):
    """The tests say themselves what is set."""
    for name in (*USERS_VARIABLES, "CXX", "MPI_HOME"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """A function that puts a shell script on the PATH, on which there is nothing else."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def make(name, body="exit 0"):
        script = folder / name
        script.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{body}\n")
        script.chmod(0o755)
        return script

    return make


@pytest.fixture
def fake_compiler(programs):
    """A function that puts a C++ compiler on the PATH, which names itself and compiles everything or nothing."""

    def make(name="g++", kind="gcc", major=12, error=None):
        defines = "\n".join(f"#define {line}" for line in MACROS[kind].format(major).splitlines())
        fails = f'echo "{error}" >&2; exit 1' if error else "exit 0"
        return programs(name, f'cat > /dev/null\ncase "$*" in\n*-dM*) echo "{defines}" ;;\n*) {fails} ;;\nesac')

    return make


@pytest.fixture
def fake_tensorflow(tmp_path):
    """A function that writes a TensorFlow with the headers of its version."""

    def make(version="2.21.0", without=(), where=None):
        folder = (where or tmp_path / "site") / "tensorflow"
        newest = [candidates[0] for candidates in MOVED.values()]
        for name in [f"xla/{header}" for header in newest if header not in without]:
            (folder / "include" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "include" / name).write_text("")
        for name in INCLUDED_BY_TENSORFLOW:
            (folder / "include" / name).mkdir(parents=True, exist_ok=True)
        return InstalledTensorFlow("tensorflow", version, folder)

    return make


@pytest.fixture
def plan(fake_tensorflow):
    return BuildPlan(fake_tensorflow(), Compiler(("g++",), "gcc", "12.2.0"), None, None, ("avx",), ())


@pytest.fixture
def fake_pip(tmp_path, monkeypatch):
    """A function that makes `sys.executable -m pip` a Python program of the test's; `calls` gets its arguments."""
    calls = tmp_path / "calls"
    python = sys.executable

    def make(body):
        program = tmp_path / "pip.py"
        program.write_text(
            "import os, pathlib, sys, zipfile\n"
            f"arguments = sys.argv[3:]\n"
            f"with open({str(calls)!r}, 'a') as file:\n"
            "    print(*arguments, file=file)\n"
            "def argument(name):\n"
            "    return arguments[arguments.index(name) + 1]\n" + body
        )
        stub = tmp_path / "python"
        stub.write_text(f'#!/bin/sh\nexec {python} -I {program} "$@"\n')
        stub.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(stub))
        return calls

    return make


@pytest.fixture
def make_wheel():
    """A function that writes a wheel with Horovod's extension for TensorFlow, or without."""

    def make(path: Path, extension=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("horovod/__init__.py", "")
            if extension:
                archive.writestr("horovod/tensorflow/mpi_lib.cpython-311-x86_64-linux-gnu.so", "code")
        return path

    return make
