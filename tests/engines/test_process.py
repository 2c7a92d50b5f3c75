"""A plan's process does what it is asked, and ends with its `with` block, however it ends."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

from tfperf import get_net
from tfperf.engines import Plan
from tfperf.engines.conversions import Conversions
from tfperf.engines.process import EngineProcess, store_arrays
from tfperf.errors import EngineError
from tfperf.exports.servable import Servable
from tfperf.measure.sampling import TimesItself

BATCH = 3

DYING = """
def run(*arrays):
    if next(count) == 2:
        print("out of luck", file=sys.stderr)
        os.kill(os.getpid(), signal.SIGKILL)
    return genuine_run(*arrays)
genuine_run, runner.run = runner.run, run
"""

HANGING = """
subprocess.Popen(["sleep", "1000"])
def run(*arrays):
    if next(count) == 2:
        signal.pause()
    return genuine_run(*arrays)
genuine_run, runner.run = runner.run, run
"""

TALKING = """
def run(*arrays):
    print("x" * 2**21)
    os.write(1, b"not an answer\\n" * 2**16)
    sys.stderr.write("y" * 2**21)
    return genuine_run(*arrays)
genuine_run, runner.run = runner.run, run
"""

PARENT = """
import sys
from pathlib import Path
from tfperf.engines.plan import Plan
from tfperf.engines.process import EngineProcess
from tfperf.exports.signature import Signature
with EngineProcess(Plan(engine="litert", threads=1)) as process:
    print(process._process.pid, flush=True)
    process.load(Path(sys.argv[1]), Signature.model_validate_json(sys.argv[2]))
    print("loaded", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def cnn(servable_of, cache, tmp_path_factory):
    """What processes are asked with: a function from an engine to its folder, the signature, and files of arrays."""
    servable, place = servable_of("cnn"), tmp_path_factory.mktemp("arrays")
    arrays = servable.signature.random_inputs(BATCH)
    return Asked(
        servable,
        Conversions(servable, cache),
        store_arrays(place / "inputs.npz", arrays),
        store_arrays(place / "reference.npz", servable.reference(arrays)),
    )


class Asked:
    def __init__(self, servable, conversions, inputs, reference):
        self.signature = servable.signature
        self.conversions, self.inputs, self.reference = conversions, inputs, reference

    def load(self, process):
        return process.load(self.conversions.folder(process.plan), self.signature)

    def check(self, process):
        return process.check(BATCH, self.inputs, self.reference)


def family(process):
    """The process and those that it started."""
    whole = psutil.Process(process._process.pid)
    return [whole, *whole.children(recursive=True)]


def gone(processes):
    """Whether all of them end within seconds; nobody waits here for those whose parent has ended."""
    until = time.monotonic() + 20
    while any(runs(process) for process in processes):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def runs(process):
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("engine", ["litert", "onnx", "openvino"])
def test_a_process_answers_without_tensorflow(engine, cnn):
    with EngineProcess(Plan(engine=engine, threads=1), deadline=120) as process:
        loaded = cnn.load(process)
        assert {"precision", "threads"} <= loaded.proof.keys()
        assert loaded.size > 1000
        assert loaded.load_seconds > 0
        checked = cnn.check(process)
        assert checked.agreement.passed
        assert checked.first_call_seconds > 0
        work = process.work(BATCH)
        assert isinstance(work, TimesItself)
        assert work.cores_used == 0
        one, hundred = work.timed(1), work.timed(100)
        assert one > 0
        assert hundred > 0
        assert 0 < work.cores_used < 2
        assert work.memory().resident >= work.memory().resident_before > 2**20
        (whole, *_) = family(process)
        imported = {"/site-packages/tensorflow/", "/site-packages/optree/"}  # the latter by Keras
        assert not [place.path for place in whole.memory_maps() if any(name in place.path for name in imported)]
        members = family(process)
    assert gone(members)


def test_an_engine_that_calls_the_net_gets_its_weights(tmp_path):
    net = get_net("mlp", seed=1)
    servable = Servable.from_net(net)
    arrays = servable.signature.random_inputs(BATCH)
    weights = store_arrays(tmp_path / "weights.npz", net.get_weights())
    inputs = store_arrays(tmp_path / "inputs.npz", arrays)
    reference = store_arrays(tmp_path / "reference.npz", servable.reference(arrays))
    with EngineProcess(Plan(engine="eager", threads=1), deadline=120) as process:
        loaded = process.build("mlp", None, 0, weights)
        assert loaded.proof["threads"] == "TensorFlow's pools: intra 1, inter 1"
        assert loaded.size is None
        assert process.check(BATCH, inputs, reference).agreement.passed


def test_wrong_answers_and_wrong_files_are_one_line_and_no_end(cnn, tmp_path):
    wrong = store_arrays(tmp_path / "wrong.npz", [np.ones((BATCH, 10), "float32")])
    with EngineProcess(Plan(engine="litert", threads=1), deadline=120) as process:
        with pytest.raises(EngineError) as told:
            process.load(tmp_path / "nothing", cnn.signature)
        assert str(told.value).isprintable()
        assert "nothing" in str(told.value)
        cnn.load(process)
        with pytest.raises(EngineError, match=r"^wrong answers: litert, 1 thread DISAGREES"):
            process.check(BATCH, cnn.inputs, wrong)
        assert cnn.check(process).agreement.passed


def test_a_process_that_is_killed_is_told_with_its_last_words(cnn, planted):
    planted(DYING)
    with EngineProcess(Plan(engine="litert", threads=1), deadline=120) as process:
        cnn.load(process)
        cnn.check(process)  # two calls
        work = process.work(BATCH)
        assert work.failure == ""
        for _ in range(2):
            with pytest.raises(
                EngineError, match=r"^litert, 1 thread: its process was killed by SIGKILL: out of luck$"
            ):
                work()
        assert work.failure == "litert, 1 thread: its process was killed by SIGKILL: out of luck"
        with pytest.raises(EngineError, match="SIGKILL"):
            work.memory()


def test_a_process_that_does_not_answer_is_ended(cnn, planted):
    planted(HANGING)
    with EngineProcess(Plan(engine="litert", threads=1), deadline=60) as process:
        cnn.load(process)
        cnn.check(process)
        members = family(process)
        assert len(members) == 2
        process._deadline = 1.0
        work = process.work(BATCH)
        with pytest.raises(EngineError, match=r"^litert, 1 thread: no answer within 1 s; its process was ended$"):
            work.timed(1)
        assert work.failure
        assert gone(members)  # before the block ends: it would disturb those that are measured
        with pytest.raises(EngineError, match="was killed by SIGKILL"):
            work.timed(1)


def test_what_an_engine_prints_is_no_answer(cnn, planted):
    planted(TALKING)
    with EngineProcess(Plan(engine="litert", threads=1), deadline=120) as process:
        cnn.load(process)
        assert cnn.check(process).agreement.passed
        assert process.work(BATCH).timed(2) > 0


def test_what_it_started_ends_with_it(cnn, planted):
    planted('subprocess.Popen(["sleep", "1000"])')
    with contextlib.suppress(ZeroDivisionError), EngineProcess(Plan(engine="litert"), deadline=120) as process:
        cnn.load(process)
        members = family(process)
        raise ZeroDivisionError
    assert len(members) == 2
    assert gone(members)


def test_it_ends_when_its_parent_is_killed(cnn, planted):
    folder = cnn.conversions.folder(Plan(engine="litert"))
    command = [sys.executable, "-P", "-c", PARENT, str(folder), cnn.signature.model_dump_json()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        try:
            child = psutil.Process(int(parent.stdout.readline()))
            assert parent.stdout.readline() == "loaded\n"
            os.kill(child.pid, signal.SIGSTOP)  # so that it cannot see the end of its input
        finally:
            parent.kill()
    assert gone([child])
