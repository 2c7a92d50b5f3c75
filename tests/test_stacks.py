"""When a test's time is up, it is seen where it stands, and where the processes stand that it has started.

A process of pytest-xdist that is killed ends the run, and how it ended is seen.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

CHILD = "import time\\ndef child_hangs_here(): time.sleep(60)\\nchild_hangs_here()"

HANGS = f"""
import subprocess, sys

def test_hangs():
    command = [sys.executable, "-c", "{CHILD}"]
    with subprocess.Popen(command) as child:
        try:
            child.communicate(timeout=WAIT)
        finally:
            child.kill()
"""


@pytest.mark.parametrize(("wait", "limit"), [("60", 4), ("10", 60)], ids=["of the test", "for a process"])
def test_stacks_of_all_processes_are_shown(tmp_path, wait, limit):
    (tmp_path / "test_it.py").write_text(HANGS.replace("WAIT", wait), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.fixtures.stacks", "-p", "no:cacheprovider"]
    command += ["--rootdir", str(tmp_path), "--timeout", str(limit), str(tmp_path / "test_it.py")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1, done.stdout
    assert "child_hangs_here" in done.stderr
    assert ("is up" if limit == 4 else "waited 10 s for a process") in done.stderr


KILLED = """
import os, signal, time, pytest
from pathlib import Path

BEFORE = Path(__file__).with_name("killed")

@pytest.mark.parametrize("number", range(4))
def test_is_killed(number):
    time.sleep(0.02)
    if number == 2 and not BEFORE.exists():  # once: one that is killed again and again ends the run, too
        BEFORE.touch()
        os.kill(os.getpid(), signal.SIGKILL)
"""
"""Fewer tests than the other files have: xdist begins with those."""

OTHERS = "import pytest\n@pytest.mark.parametrize('number', range(6))\ndef test_passes(number): pass\n"


def test_a_killed_process_ends_the_run(tmp_path):
    (tmp_path / "test_it.py").write_text(KILLED, encoding="utf-8")
    for name in "abcdef":
        (tmp_path / f"test_{name}.py").write_text(OTHERS, encoding="utf-8")
    options = ["-q", "-n", "2", "--dist", "loadfile", "-p", "no:cacheprovider", "-p", "tests.fixtures.stacks"]
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), *options, str(tmp_path)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1, done.stdout
    assert "crashed while running" in done.stdout
    assert "test_is_killed[2]" in done.stdout
    assert "was killed by SIGKILL" in done.stderr
