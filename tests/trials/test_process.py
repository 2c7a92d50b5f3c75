"""A plan's process does what it is asked: loads or builds, checks, counts, and times."""

import numpy as np
import psutil
import pytest

from tfperf.engines import Plan
from tfperf.engines.conversions import Conversions
from tfperf.measure.sampling import TimesItself
from tfperf.trials.host import Child
from tfperf.trials.process import EngineProcess, Origin, store_arrays
from tfperf.trials.trial import Status, TrialError

BATCH = 3


@pytest.mark.parametrize("engine", ["litert", "onnx", "openvino"])
def test_a_process_answers_without_tensorflow(engine, servable_of, cache, tmp_path):
    servable, plan = servable_of("cnn"), Plan(engine=engine, threads=1)
    arrays = servable.signature.random_inputs(2 * BATCH + 1)
    inputs = store_arrays(tmp_path / "inputs.npz", arrays)
    reference = store_arrays(tmp_path / "reference.npz", servable.reference(arrays))
    with EngineProcess(plan, Child(deadline=120)) as process:
        loaded = process.load(Conversions(servable, cache).folder(plan), servable.signature)
        assert {"precision", "threads"} <= loaded.proof.keys()
        assert loaded.size > 1000
        assert loaded.load_seconds > 0
        checked = process.check(BATCH, inputs, reference)
        assert checked.agreement.passed
        assert checked.agreement.tolerance == 1e-4
        assert checked.first_call_seconds > 0
        work = process.work(BATCH)
        assert isinstance(work, TimesItself)
        assert work.cores_used == 0
        one, hundred = work.timed(1), work.timed(100)
        assert one > 0
        assert hundred > 0
        assert 0 < work.cores_used < 2
        assert work.memory().resident >= work.memory().resident_before > 2**20
        assert work.failure is None
        maps = psutil.Process(process.host.pid).memory_maps()
        imported = {"/site-packages/tensorflow/", "/site-packages/optree/"}  # the latter by Keras
        assert not [place.path for place in maps if any(name in place.path for name in imported)]


def test_an_engine_that_calls_the_net_gets_its_weights(dense, tmp_path):
    servable, origin, _ = dense
    weights = [array + np.float32(0.5) for array in servable.net.get_weights()]
    own = servable.net.get_weights()
    servable.net.set_weights(weights)
    try:
        arrays = servable.signature.random_inputs(BATCH)
        reference = store_arrays(tmp_path / "reference.npz", servable.reference(arrays))
    finally:
        servable.net.set_weights(own)
    inputs, stored = store_arrays(tmp_path / "inputs.npz", arrays), store_arrays(tmp_path / "weights.npz", weights)
    with EngineProcess(Plan(engine="eager", threads=1), Child(deadline=240)) as process:
        with pytest.raises(TrialError, match=r"^eager, 1 thread: expected a net \(.* which does not exist$") as told:
            process.build(Origin("no_such_model"), stored, servable.signature)
        assert told.value.status is Status.REFUSED
        loaded = process.build(origin, stored, servable.signature)
        assert loaded.proof["threads"] == "TensorFlow's pools: intra 1, inter 1"
        assert loaded.size is None
        assert process.check(BATCH, inputs, reference).agreement.passed


def test_wrong_answers_and_wrong_files_are_one_line_and_no_end(planted):
    wrong = store_arrays(planted.place / "wrong.npz", [np.ones((2 * planted.batch, 2), "float32")])
    with planted.process("honest") as process:
        with pytest.raises(TrialError, match=r"^honest: .*nothing") as told:
            process.load(planted.place / "nothing", planted.signature)
        assert told.value.status is Status.REFUSED
        assert str(told.value).isprintable()
        planted.load(process)
        with pytest.raises(TrialError, match=r"^wrong answers: honest DISAGREES: relative error .* 0\.0001$") as told:
            process.check(planted.batch, planted.inputs, wrong)
        assert told.value.status is Status.WRONG
        assert process.check(planted.batch, planted.inputs, wrong, tolerance=9.0).agreement.tolerance == 9
        assert planted.check(process).agreement.passed


@pytest.mark.parametrize("engine", ["wrong", "memory_of_one", "nan"])
def test_answers_are_checked_batch_by_batch(engine, planted):
    with planted.process(engine) as process:
        planted.load(process)
        with pytest.raises(TrialError, match=rf"^wrong answers: {engine}") as told:
            planted.check(process)
        assert told.value.status is Status.WRONG


def test_the_largest_answer_can_be_asked_to_be_the_same(planted):
    """The planted net gives (x @ kernel + 1); another kernel has other winners, whatever the tolerance."""
    (x,) = planted.signature.random_inputs(2 * planted.batch)
    other = store_arrays(planted.place / "other.npz", [x @ np.eye(3, 2, dtype="float32")])
    with planted.process("honest") as process:
        planted.load(process)
        share = process.check(planted.batch, planted.inputs, other, tolerance=99.0).agreement.same_top1_share
        assert 0 < share < 1
        words = rf"^honest: wrong answers: the largest is the same in {share:.1%} of rows$"
        with pytest.raises(TrialError, match=words) as told:
            process.check(planted.batch, planted.inputs, other, tolerance=99.0, same_top1=True)
        assert told.value.status is Status.WRONG
        assert process.check(planted.batch, planted.inputs, planted.reference, same_top1=True).agreement.passed


def test_labels_are_counted_in_batches(planted):
    (x,) = planted.signature.random_inputs(7, seed=5)
    found = (x @ np.linspace(-1, 1, 6, dtype="float32").reshape(3, 2) + 1).argmax(axis=1)
    inputs = store_arrays(planted.place / "labelled.npz", [x])
    labels = found.copy()
    labels[-1] = 1 - labels[-1]
    stored = store_arrays(planted.place / "labels.npz", [labels])
    for engine in ("honest", "nan"):
        with planted.process(engine) as process:
            planted.load(process)
            if engine == "honest":
                assert process.accuracy(4, inputs, stored) == pytest.approx(6 / 7)
                continue
            with pytest.raises(TrialError, match=r"^nan: expected finite answers to the labelled inputs"):
                process.accuracy(4, inputs, stored)


def test_speed_is_what_was_planted(planted):
    planted.set(seconds=0.002)
    for engine, share in {"honest": 1, "slower": 1.03}.items():
        with planted.process(engine) as process:
            planted.load(process)
            planted.check(process)
            shares = []
            while len(shares) < 5 and max(shares, default=0) <= 0.1:  # again where the process had to wait
                work = process.work(planted.batch)
                assert work.timed(20) >= 20 * share * 0.002
                shares.append(work.cores_used)
            assert 0.1 < max(shares) <= 1.01
