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

STAND_IN = '''
"""What the workers ask of TensorFlow, by NumPy, which is there in a moment."""

from types import SimpleNamespace

import numpy as np

float32 = np.float32
threading = SimpleNamespace(set_intra_op_parallelism_threads=id, set_inter_op_parallelism_threads=id)
config = SimpleNamespace(set_visible_devices=lambda devices, kind: None, threading=threading)


class Tensor(np.ndarray):
    def numpy(self):
        return np.asarray(self)


def constant(values, dtype):
    return np.asarray(values, dtype).view(Tensor)


def ones(shape):
    return constant(np.ones(shape, float32), float32)


def matmul(a, b):
    return a @ b


def reduce_sum(x):
    return constant(np.sum(x), float32)
'''


@pytest.fixture
def running(request, tmp_path):
    """The recipe, with both workers at work, in a process group of its own, which is killed at the end of the test."""
    environment = dict(os.environ)
    if request.param == "stand-in":
        (tmp_path / "packages").mkdir()
        (tmp_path / "packages" / "tensorflow.py").write_text(STAND_IN)
        environment["PYTHONPATH"] = str(tmp_path / "packages")  # comes before the real one
    process = subprocess.Popen(
        [sys.executable, str(RECIPE), "--time-limit", "600"],
        cwd=tmp_path,
        env=environment,
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
    ("running", "number", "to_all", "code"),
    [
        ("stand-in", signal.SIGINT, True, 130),
        ("stand-in", signal.SIGTERM, False, 130),
        ("TensorFlow", signal.SIGKILL, False, -signal.SIGKILL),  # nobody is left who would end the workers
    ],
    indirect=["running"],
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


@pytest.mark.parametrize("running", ["stand-in"], indirect=True)
def test_a_worker_that_dies_is_one_line_and_2(running):
    process, everybody = running
    next(one for one in everybody if "spawn_main" in " ".join(one.cmdline())).kill()
    _, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 2
    assert errors.splitlines()[-1].startswith("sharing_a_device: expected an answer of each worker")
    _, alive = psutil.wait_procs(everybody, timeout=DEADLINE)
    assert not alive
