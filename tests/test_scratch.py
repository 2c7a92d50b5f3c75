"""Scratch folders end with their process, however it ends."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tfperf import scratch
from tfperf.scratch import scratch_folder

HOLDS = """
import signal
from tfperf.scratch import scratch_folder
with scratch_folder("tfperf-test-") as folder:
    (folder / "file").touch()
    print(folder, flush=True)
    signal.pause()
"""


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


@pytest.fixture
def another():
    """A process that holds a folder, and the folder."""
    with subprocess.Popen([sys.executable, "-c", HOLDS], stdout=subprocess.PIPE, text=True) as process:
        yield process, Path(process.stdout.readline().strip())
        process.kill()


def test_it_is_gone_afterwards(place) -> None:
    with contextlib.suppress(ZeroDivisionError), scratch_folder("tfperf-test-") as folder:
        assert folder.parent == place
        (folder / "file").touch()
        raise ZeroDivisionError
    assert list(place.iterdir()) == []


def test_what_a_killed_process_left_goes_and_what_others_hold_stays(another, place, monkeypatch) -> None:
    process, held = another
    (place / "tfperf-test-of-somebody-else").mkdir()
    monkeypatch.setattr(scratch, "GRACE", -1.0)
    with scratch_folder("tfperf-test-"):
        assert (held / "file").exists()
    os.kill(process.pid, signal.SIGKILL)
    process.wait(60)
    monkeypatch.setattr(scratch, "GRACE", 60.0)
    with scratch_folder("tfperf-test-"):
        assert held.exists()  # it was made a moment ago
    monkeypatch.setattr(scratch, "GRACE", -1.0)
    with scratch_folder("tfperf-test-"):
        assert not held.exists()
    assert [left.name for left in place.iterdir()] == ["tfperf-test-of-somebody-else"]
