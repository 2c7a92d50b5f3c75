"""`tfperf horovod`: the real check; an install whose pip and compiler are the test's own."""

import os
import signal
import subprocess
import sys
import time
from importlib import metadata

import psutil
import pytest

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


def test_install_leaves_the_real_one_as_it_is(tfperf_command, tmp_path, monkeypatch):
    monkeypatch.setenv("TFPERF_CACHE", str(tmp_path))
    before = metadata.distribution("horovod").read_text("RECORD")
    result = tfperf_command("horovod", "install")
    assert result.returncode == 0, result.stderr
    assert "installed already" in result.stdout
    assert metadata.distribution("horovod").read_text("RECORD") == before


def test_horovod_alone_is_help(tfperf_command):
    result = tfperf_command("horovod")
    assert result.returncode == 0
    assert "install" in result.stdout
    assert "check" in result.stdout


@pytest.mark.parametrize("command", ["install", "check"])
def test_both_commands_have_help(tfperf_command, command):
    result = tfperf_command("horovod", command, "--help")
    assert result.returncode == 0
    assert result.stderr == ""


def run_without(package, *arguments, tmp_path):
    """Run the command in a process for which a package is not installed."""
    code = (
        "import sys\n"
        "from importlib import metadata, util\n"
        f"package = {package!r}\n"
        "distribution, find_spec = metadata.distribution, util.find_spec\n"
        "def without(name):\n"
        "    if name == package: raise metadata.PackageNotFoundError(name)\n"
        "    return distribution(name)\n"
        "metadata.distribution = without\n"
        "util.find_spec = lambda name, *rest: None if name == package else find_spec(name, *rest)\n"
        "from tfperf.cli import main\n"
        "main(sys.argv[1:])\n"
    )
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True, text=True, timeout=120, cwd=tmp_path, env=os.environ | {"TFPERF_CACHE": str(tmp_path)},
    )  # fmt: skip


def test_check_without_horovod_says_what_to_run(tmp_path):
    result = run_without("horovod", "horovod", "check", tmp_path=tmp_path)
    assert result.returncode == 2
    assert result.stderr == "tfperf: Horovod is not installed; run `tfperf horovod install`\n"
    assert result.stdout == ""


def test_check_of_one_that_does_not_work_is_exit_code_1(tmp_path):
    result = run_without("tensorflow", "horovod", "check", tmp_path=tmp_path)
    assert result.returncode == 1
    assert result.stderr == (
        "tfperf: Horovod 0.28.1 does not work here: TensorFlow is not installed; run `tfperf horovod install`\n"
    )


def test_install_without_tensorflow_is_one_line(tmp_path):
    result = run_without("tensorflow", "horovod", "install", tmp_path=tmp_path)
    assert result.returncode == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert "found none; pip install tensorflow" in result.stderr


def test_install_without_a_compiler_is_one_line(tfperf_command, surroundings, monkeypatch):
    for name, value in (surroundings | {"CXX": "/nowhere/g++"}).items():
        monkeypatch.setenv(name, value)
    result = tfperf_command("horovod", "install", "--rebuild")
    assert result.returncode == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert "expected a C++ compiler in CXX, found no program '/nowhere/g++'; apt-get install g++" in result.stderr


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
        wait_until((tmp_path / "numbers").exists)
        process.send_signal(ask)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == code
    assert "  10 %" in out
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
