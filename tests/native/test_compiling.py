import contextlib
import importlib.machinery
import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.fixtures.engines import gone
from tfperf.errors import EngineError
from tfperf.native import compiling
from tfperf.native.compiling import compile_once, find_compiler, run_tool, tensorflow_folder

SOURCE = "int answer(void) { return 42; }\n"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TFPERF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "native"


@pytest.fixture
def source(tmp_path):
    file = tmp_path / "answer.c"
    file.write_text(SOURCE)
    return file


def test_a_source_is_compiled_once_for_each_of_its_versions_and_settings(source, cache, monkeypatch):
    first = compile_once(source, "answer.o", ["-c", "-O1"])
    assert first.is_file()
    changed = compile_once(source, "answer.o", ["-c", "-O2"])
    source.write_text(SOURCE.replace("42", "43"))
    assert len({first, changed, compile_once(source, "answer.o", ["-c", "-O1"])}) == 3
    source.write_text(SOURCE)
    monkeypatch.setattr(compiling, "run_tool", None)  # it would be called
    assert compile_once(source, "answer.o", ["-c", "-O1"]) == first


def test_a_compiler_that_fails_leaves_nothing_and_its_error_is_told(source, cache):
    source.write_text("int answer(void) { return other; }\n")
    with pytest.raises(
        EngineError, match=r"^the compiler, on answer\.c, failed: .*error: .*other.*undeclared"
    ) as caught:
        compile_once(source, "answer.o", ["-c"])
    assert "\n" not in str(caught.value)
    assert [path.name for path in cache.iterdir()] == [".lock"]


def test_a_build_that_is_ended_half_way_is_not_taken_for_whole(source, cache, monkeypatch):
    def write_half(command, name):
        if "--version" in command:
            return "1"
        Path(command[-1]).write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(compiling, "run_tool", write_half)
    with pytest.raises(KeyboardInterrupt):
        compile_once(source, "answer.o", ["-c"])
    monkeypatch.undo()
    monkeypatch.setenv("TFPERF_CACHE", str(cache.parent))
    assert compile_once(source, "answer.o", ["-c"]).read_bytes().startswith(b"\x7fELF")


def test_a_tool_that_takes_too_long_ends_with_all_that_it_started(tmp_path):
    script = "sleep 600 & echo $! > child; wait"
    command = ["sh", "-c", f"cd {tmp_path}; {script}"]
    with pytest.raises(EngineError, match=r"^the script was not done in 5 s$"):
        run_tool(command, "the script", deadline=5)
    child = int((tmp_path / "child").read_text())
    with contextlib.suppress(psutil.NoSuchProcess):  # it was killed, and dies when it has its turn
        assert gone([psutil.Process(child)])


@pytest.mark.parametrize(
    ("wrote", "reason"),
    [
        ("a.cc:1: note: x\na.cc:2:1: error: no such thing\na.cc:3: error: more", "a.cc:2:1: error: no such thing"),
        ("Traceback:\n  at\nValueError: first\n\nRuntimeError: why", "RuntimeError: why"),
        ("LLVM ERROR: no such target", "LLVM ERROR: no such target"),
        ("only this", "only this"),
        ("", "it said nothing"),
    ],
)
def test_a_failure_is_told_by_the_line_that_says_why(wrote, reason):
    with pytest.raises(EngineError) as caught:
        run_tool([sys.executable, "-c", f"import sys; sys.stderr.write({wrote!r}); sys.exit(1)"], "it")
    assert str(caught.value) == f"it failed: {reason}"


def test_a_tool_that_dies_is_told_with_its_signal():
    with pytest.raises(EngineError, match=rf"\(signal {signal.SIGABRT.value}\)$"):
        run_tool([sys.executable, "-c", "import os; os.abort()"], "it")


def test_a_compiler_is_the_users_or_the_first_there_is(monkeypatch, tmp_path):
    compiler = tmp_path / "clang++"
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert find_compiler(".cc") == [str(compiler)]
    monkeypatch.setenv("CXX", f"{compiler} -m64")
    assert find_compiler(".cc") == [str(compiler), "-m64"]
    monkeypatch.setenv("PATH", os.devnull)
    monkeypatch.delenv("CXX")
    with pytest.raises(EngineError, match=r"^expected a compiler for \.cc files \(c\+\+, g\+\+, clang\+\+\); install"):
        find_compiler(".cc")


def test_a_tensorflow_without_its_libraries_is_told(monkeypatch, tmp_path):
    assert (tensorflow_folder() / "libtensorflow_cc.so.2").is_file()
    found = importlib.machinery.ModuleSpec("tensorflow", None, is_package=True)
    found.submodule_search_locations.append(str(tmp_path))
    for spec in (None, found):
        monkeypatch.setattr(importlib.util, "find_spec", lambda name, spec=spec: spec)
        with pytest.raises(EngineError, match=r"^expected TensorFlow's libraries and headers.*pip install tensorflow$"):
            tensorflow_folder()


PARENT = """
import os, signal, sys, threading, time
import psutil
from tfperf.native.compiling import run_tool
threading.Thread(target=run_tool, args=[[sys.executable, "-c", sys.argv[1]], "the tool"], daemon=True).start()
while len(family := psutil.Process().children(recursive=True)) < 3:  # its keeper is one
    time.sleep(0.05)
print(*(one.pid for one in family), flush=True)
if sys.argv[2] == "stopped":
    for one in family[1:]:
        one.suspend()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("how", ["running", "stopped"])
def test_a_tool_ends_when_this_process_is_killed(how, within_seconds):
    """With all that it started; where it stands still, too."""
    tool = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    command = [sys.executable, "-P", "-c", PARENT, tool, how]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=False, start_new_session=True)
    assert done.returncode == -signal.SIGKILL
    family = [int(pid) for pid in done.stdout.split()]
    assert len(family) == 3
    try:
        assert within_seconds(lambda: not any(map(psutil.pid_exists, family)))
    finally:
        for pid in filter(psutil.pid_exists, family):
            os.kill(pid, signal.SIGKILL)


def test_a_tool_that_is_not_there_is_an_error():
    with pytest.raises(EngineError, match="the linker cannot be started: /no/such/linker: No such file or directory"):
        run_tool(["/no/such/linker"], "the linker")
