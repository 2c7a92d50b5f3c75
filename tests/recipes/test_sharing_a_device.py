"""The recipe sharing_a_device: its workers end with it, however it ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "sharing_a_device.py"
DEADLINE = 120


@pytest.fixture
def running(tmp_path):
    """The recipe, with both workers at work, in a process group of its own, which is killed at the end of the test."""
    process = subprocess.Popen(
        [sys.executable, str(RECIPE), "--time-limit", "600"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    everybody = []
    try:
        for line in process.stdout:
            if "Are the answers the same?" in line:
                break
        assert process.poll() is None, "the recipe ended before it measured"
        everybody = psutil.Process(process.pid).children(recursive=True)
        yield process, everybody
    finally:
        for member in everybody:
            if member.is_running():
                member.kill()
        process.kill()
        process.wait(DEADLINE)
        process.stdout.close()
        process.stderr.close()


@pytest.mark.parametrize(
    ("number", "to_all", "code"),
    [(signal.SIGINT, True, 130), (signal.SIGTERM, False, 130), (signal.SIGKILL, False, -signal.SIGKILL)],
)
def test_its_workers_end_with_it(running, tmp_path, number, to_all, code):
    process, everybody = running
    assert len([one for one in everybody if "spawn_main" in " ".join(one.cmdline())]) == 2
    if to_all:
        os.killpg(process.pid, number)  # as Ctrl-C in a terminal
    else:
        os.kill(process.pid, number)
    _, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == code
    assert "Traceback" not in errors
    _, alive = psutil.wait_procs(everybody, timeout=DEADLINE)
    assert not alive
    assert not list(tmp_path.rglob("*.json"))


def test_a_worker_that_dies_is_one_line_and_2(running):
    process, everybody = running
    next(one for one in everybody if "spawn_main" in " ".join(one.cmdline())).kill()
    _, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 2
    assert errors.splitlines()[-1].startswith("sharing_a_device: expected an answer of each worker")
    _, alive = psutil.wait_procs(everybody, timeout=DEADLINE)
    assert not alive
