"""When a test's time is up, it is seen where it stands, and where the processes stand that it has started."""

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
