"""`tfperf horovod`: the real check; an install whose pip and compiler are the test's own."""

import importlib.util
import os
import signal
import subprocess
import sys
import time
from importlib import metadata

import psutil
import pytest

from tfperf.cli import main

PIP_THAT_HANGS = """\
import os, subprocess, sys, time
if sys.argv[1] == "install":
    sys.exit()
other = subprocess.Popen(["sleep", "600"])
print("[ 10%] Building CXX object x/mpi_ops.cc.o", flush=True)
with open(os.environ["NUMBERS"] + ".part", "w") as file:
    print(os.getpid(), other.pid, file=file)
os.rename(os.environ["NUMBERS"] + ".part", os.environ["NUMBERS"])
time.sleep(600)
"""
COMPILER = """\
#!/bin/sh
cat > /dev/null
case "$*" in *-dM*) printf '#define __GNUC__ 12\\n#define __GNUC_MINOR__ 2\\n#define __GNUC_PATCHLEVEL__ 0\\n' ;; esac
"""


@pytest.fixture
def surroundings(tmp_path):
    """Environment variables for a command whose pip hangs, whose compiler compiles all, and whose cache is empty."""
    (tmp_path / "modules/pip").mkdir(parents=True)
    (tmp_path / "modules/pip/__init__.py").write_text("")
    (tmp_path / "modules/pip/__main__.py").write_text(PIP_THAT_HANGS)
    (tmp_path / "g++").write_text(COMPILER)
    (tmp_path / "g++").chmod(0o755)
    (tmp_path / "temporary").mkdir()
    return {
        "PYTHONPATH": str(tmp_path / "modules"),
        "NUMBERS": str(tmp_path / "numbers"),
        "CXX": str(tmp_path / "g++"),
        "TFPERF_CACHE": str(tmp_path / "cache"),
        "TMPDIR": str(tmp_path / "temporary"),
    }


def test_check_proves_that_the_real_one_works(tfperf_command):
    result = tfperf_command("horovod", "check", timeout=240)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == f"Horovod 0.28.1 for TensorFlow {metadata.version('tensorflow')}"
    assert lines[1].startswith("  controllers  gloo")
    assert "1 + 2 = 3 on 2 ranks" in lines[-1]
    assert "rank 0" in lines[-1]
    assert "rank 1" in lines[-1]


@pytest.fixture
def horovod(tmp_path, monkeypatch, capsys):
    """A function that runs `tfperf horovod` in this process: (exit code, standard output, standard error)."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    monkeypatch.setenv("TFPERF_CACHE", str(tmp_path))

    def horovod(*arguments):
        with pytest.raises(SystemExit) as ended:
            main(["horovod", *arguments])
        return (ended.value.code, *capsys.readouterr())

    yield horovod
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def without(monkeypatch):
    """A function that has a package not be installed."""
    distribution, find_spec = metadata.distribution, importlib.util.find_spec

    def without(package):
        def distribution_of(name):
            if name == package:
                raise metadata.PackageNotFoundError(name)
            return distribution(name)

        monkeypatch.setattr(metadata, "distribution", distribution_of)
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name, *rest: None if name == package else find_spec(name, *rest)
        )

    return without


def test_install_leaves_the_real_one_as_it_is(horovod):
    before = metadata.distribution("horovod").read_text("RECORD")
    code, out, err = horovod("install")
    assert (code, err) == (0, "")
    assert "installed already" in out
    assert metadata.distribution("horovod").read_text("RECORD") == before


@pytest.mark.parametrize("arguments", [[], ["install", "--help"], ["check", "--help"]])
def test_there_is_help(horovod, arguments):
    code, out, err = horovod(*arguments)
    assert (code, err) == (0, "")
    assert "Usage: tfperf horovod" in out
    assert "  install  " in out or arguments


def test_check_without_horovod_says_what_to_run(horovod, without):
    without("horovod")
    assert horovod("check") == (2, "", "tfperf: Horovod is not installed; run `tfperf horovod install`\n")


def test_check_of_one_that_does_not_work_is_exit_code_1(horovod, without):
    without("tensorflow")
    code, _, err = horovod("check")
    assert code == 1
    assert err == (
        "tfperf: Horovod 0.28.1 does not work here: TensorFlow is not installed; run `tfperf horovod install`\n"
    )


def test_install_without_tensorflow_is_one_line(horovod, without):
    without("tensorflow")
    code, out, err = horovod("install")
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert "found none; pip install tensorflow" in err


def test_install_without_a_compiler_is_one_line(horovod, monkeypatch):
    monkeypatch.setenv("CXX", "/nowhere/g++")
    code, out, err = horovod("install", "--rebuild")
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert "expected a C++ compiler in CXX, found no program '/nowhere/g++'; apt-get install g++" in err


@pytest.mark.parametrize(("ask", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_an_interrupted_install_ends_all_and_leaves_nothing(surroundings, tmp_path, ask, code):
    process = subprocess.Popen(
        [sys.executable, "-m", "tfperf", "horovod", "install", "--rebuild"],
        env=os.environ | surroundings,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    try:
        out = ""
        while "  10 %" not in out and (line := process.stdout.readline()):
            out += line
        wait_until((tmp_path / "numbers").exists)
        process.send_signal(ask)
        rest, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == code
    assert "  10 %" in out + rest
    assert len(err.splitlines()) <= 1, "no traceback"
    numbers = [int(word) for word in (tmp_path / "numbers").read_text().split()]
    wait_until(lambda: not any(runs(number) for number in numbers))
    assert list((tmp_path / "temporary").iterdir()) == []
    assert [path.name for path in (tmp_path / "cache/horovod").iterdir()] == ["lock"]


def wait_until(true):
    patience = time.monotonic() + 60
    while not true():
        assert time.monotonic() < patience
        time.sleep(0.05)


def runs(number):
    try:
        return psutil.Process(number).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
