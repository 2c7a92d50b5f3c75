"""The recipe sharing_a_device: its processes end with it, however it ends, in one line and with nothing written."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "sharing_a_device.py"
DEADLINE = 120

STAND_IN = '''
"""What the processes ask of TensorFlow, by NumPy, which is there in a moment."""

from types import SimpleNamespace

import numpy as np

threading = SimpleNamespace(set_intra_op_parallelism_threads=id, set_inter_op_parallelism_threads=id)
config = SimpleNamespace(list_physical_devices=lambda kind: [], threading=threading)


class Tensor(np.ndarray):
    def numpy(self):
        return np.asarray(self)


def constant(values):
    return np.asarray(values).view(Tensor)


def ones(shape):
    return constant(np.ones(shape, np.float32))


def matmul(a, b):
    return a @ b


def reduce_sum(x):
    return constant(np.sum(x))
'''


@pytest.fixture
def running(tmp_path):
    """The recipe, with both processes at work, in a process group of its own; the end of the test kills it."""
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "tensorflow.py").write_text(STAND_IN)  # comes before the real one
    process = subprocess.Popen(
        [sys.executable, str(RECIPE), "--time-limit", "600"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path / "packages")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    everybody = []
    try:
        for line in process.stdout:
            if "Are the outputs the same?" in line:
                break
        assert process.poll() is None, "the recipe ended before it measured"
        everybody = psutil.Process(process.pid).children(recursive=True)
        assert len([one for one in everybody if is_worker(one)]) == 2
        yield process, everybody
    finally:
        for member in everybody:
            if member.is_running():
                member.kill()
        process.kill()
        process.wait(DEADLINE)
        process.stdout.close()
        process.stderr.close()


def is_worker(process):
    return "spawn_main" in " ".join(process.cmdline())


@pytest.mark.parametrize(
    ("number", "to_all", "code"),
    [(signal.SIGINT, True, 130), (signal.SIGTERM, False, 130), (signal.SIGKILL, False, -signal.SIGKILL)],
)
def test_its_processes_end_with_it(running, tmp_path, number, to_all, code):
    process, everybody = running
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


def test_a_process_that_dies_is_one_line_and_2(running):
    process, everybody = running
    next(one for one in everybody if is_worker(one)).kill()
    _, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 2
    assert errors.splitlines()[-1].startswith("sharing_a_device: expected an output of each process")
    _, alive = psutil.wait_procs(everybody, timeout=DEADLINE)
    assert not alive
