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


@pytest.fixture
def left(place, monkeypatch):
    """A function that makes a folder as a killed process leaves it, long ago."""
    monkeypatch.setattr(scratch, "GRACE", -1.0)

    def left(name):
        folder = place / f"tfperf-test-{name}"
        folder.mkdir(mode=0o700)
        (folder / scratch.LOCK).touch()
        return folder

    return left


def test_neither_locks_nor_folders_that_are_links_are_followed(left, place) -> None:
    left("plain")
    linked, victim = left("linked"), place / "victim"
    (linked / scratch.LOCK).unlink()
    victim.touch()
    (linked / scratch.LOCK).symlink_to(victim)
    elsewhere = left("elsewhere").rename(place / "elsewhere")
    (place / "tfperf-test-link").symlink_to(elsewhere)
    pipe = left("pipe")
    (pipe / scratch.LOCK).unlink()
    os.mkfifo(pipe / scratch.LOCK)
    with scratch_folder("tfperf-test-") as own:
        assert {path.name for path in place.iterdir()} - {own.name} == {
            "tfperf-test-linked", "victim", "elsewhere", "tfperf-test-link", "tfperf-test-pipe",
        }  # fmt: skip
        assert (elsewhere / scratch.LOCK).exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file away")
def test_what_belongs_to_others_stays(left) -> None:
    folder, lock = left("folder"), left("lock") / scratch.LOCK
    for path in (folder, lock):
        os.chown(path, 54321, -1)
    with scratch_folder("tfperf-test-"):
        assert folder.exists()
        assert lock.exists()
