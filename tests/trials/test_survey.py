"""Plans side by side: each is measured, or has a reason."""

import importlib.util
import os
import tempfile

import keras
import numpy as np
import psutil
import pytest

from tfperf.engines import Plan
from tfperf.engines.conversions import Conversions
from tfperf.exports.servable import Servable
from tfperf.files import LOCK
from tfperf.trials.process import Origin
from tfperf.trials.survey import survey
from tfperf.trials.trial import Status, median_seconds

NOWHERE = Origin("no model: the plans here load what was converted")
LITERT, ONNX, FROZEN = (Plan(engine=name, threads=1) for name in ("litert", "onnx", "frozen"))


@pytest.fixture(scope="module")
def surveyed(servable_of, cache):
    """A function that surveys plans of the small CNN at one batch size or several."""
    for plan in (LITERT, ONNX, FROZEN):
        Conversions(servable_of("cnn"), cache).folder(plan)

    def surveyed(*plans, batches=(2,), time_limit=0.5, **options):
        servable = servable_of("cnn")
        inputs = {batch: servable.signature.random_inputs(batch) for batch in batches}
        chosen = {batch: list(plans) for batch in batches}
        return survey(servable, NOWHERE, chosen, inputs, time_limit=time_limit, cache=cache, **options)

    return surveyed


def test_plans_are_measured_side_by_side_for_each_batch_size(surveyed):
    steps, progress = [], []
    both = surveyed(
        LITERT, ONNX, FROZEN, batches=(1, 16), time_limit=1.5, on_step=steps.append, on_progress=progress.append
    )
    assert [one.batch for one in both] == [1, 16]
    assert [one.title for one in both] == ["batch 1, 1 thread", "batch 16, 1 thread"]
    for found in both:
        assert found.answers_vary
        assert found.ran == list(found.trials)
        assert [row.plan for row in found.trials] == [LITERT, ONNX, FROZEN]
        names = [row.name for row in found.trials]
        assert names == [f"{engine}, 1 thread, batch {found.batch}" for engine in ("litert", "onnx", "frozen")]
        assert [one.name for one in found.comparison.measurements] == names
        assert len(found.comparison.ratios) == 3
        for row, measurement in zip(found.trials, found.comparison.measurements, strict=True):
            assert (row.status, row.reason) == (Status.RAN, "")
            assert row.measurement == measurement
            assert median_seconds(row) == measurement.interval.estimate
            assert row.agreement.passed
            assert row.agreement.relative_error <= 1e-4
            assert row.first_call_seconds > 0
            assert row.load_seconds > 0
            assert row.size > 1000
            assert 0 < row.cores_used < 1.9
            assert row.measurement.memory.resident > row.measurement.memory.resident_before > 2**20
            assert {"precision", "threads"} <= row.proof.keys()
    memory = {row.plan.engine: row.measurement.memory.resident for row in both[0].trials}
    assert memory["frozen"] > memory["litert"]  # all of TensorFlow is in it: each has a process of its own
    assert [step for step in steps if step.startswith("measuring")] == [
        f"measuring 3 plans in turns at batch {batch}" for batch in (1, 16)
    ]
    assert "onnx, 1 thread: loading, and checking its answers at batch 16" in steps
    assert all(one.time_limit == 1.5 for one in progress)


def test_what_does_not_run_has_its_reason(surveyed, monkeypatch):
    def find_spec(name, *_):
        return None if name == "onnxruntime" else genuine(name)

    genuine = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    (found,) = surveyed(
        ONNX, LITERT.model_copy(update={"precision": "bfloat16"}), LITERT, Plan(engine="xla_aot", threads=1)
    )
    told = {(row.plan.engine, row.plan.precision): (row.status, row.reason) for row in found.trials}
    assert told == {
        ("onnx", "float32"): (Status.MISSING, "onnx is missing (onnxruntime); pip install 'tfperf[onnx]'"),
        ("litert", "bfloat16"): (
            Status.REFUSED,
            "expected a precision of litert (float32, float16, int8, int8_static). Received: bfloat16",
        ),
        ("litert", "float32"): (Status.RAN, ""),
        ("xla_aot", "float32"): (
            Status.REFUSED,
            "xla_aot is built for one batch size; give it, as in Plan(..., batch=1)",
        ),
    }
    (alone,) = found.ran
    assert found.comparison is None
    assert alone.measurement.name == "litert, 1 thread, batch 2"
    assert alone.measurement.memory.resident > alone.measurement.memory.resident_before
    assert alone.cores_used > 0


def test_a_plan_that_answers_wrongly_is_refused(surveyed, servable_of, monkeypatch):
    servable = servable_of("cnn")
    monkeypatch.setattr(servable, "reference", lambda arrays: (np.ones((2, 10), "float32"),))
    (found,) = surveyed(LITERT)
    (row,) = found.trials
    assert not found.answers_vary
    assert row.status is Status.WRONG
    assert row.reason.startswith("wrong answers: litert, 1 thread DISAGREES: relative error ")
    assert found.comparison is None


def test_plans_that_fail_at_any_stage_leave_the_others_as_they_are(dense, planted):
    planted.set(calls=40)
    servable, origin, cache = dense
    plans = [Plan(engine=engine) for engine in ("honest", "exits", "wrong", "raises", "equal")]
    inputs = {batch: servable.signature.random_inputs(batch) for batch in (8, 1)}
    both = survey(servable, origin, dict.fromkeys(inputs, plans), inputs, time_limit=0.8, cache=cache)
    first, second = ({row.plan.engine: row for row in found.trials} for found in both)
    assert list(first) == list(second) == [plan.engine for plan in plans]
    statuses = [Status.RAN, Status.CRASHED, Status.WRONG, Status.REFUSED, Status.RAN]
    assert [row.status for row in first.values()] == [row.status for row in second.values()] == statuses
    words = "exits: its process ended with exit code 7:  [31mout of luck"
    assert first["exits"].reason == second["exits"].reason == words
    for found in both:
        assert [row.plan for row in found.ran] == [plans[0], plans[-1]]
        assert [one.name for one in found.comparison.measurements] == [row.name for row in found.ran]
    assert planted.nothing_left()


def test_a_plan_whose_process_died_is_tried_again_at_the_next_batch_size(dense, planted):
    def live_longer(step):
        if step.endswith("at batch 1"):
            planted.set(calls=10**9)

    planted.set(calls=40)
    servable, origin, cache = dense
    plans = [Plan(engine=engine) for engine in ("honest", "exits")]
    inputs = {batch: servable.signature.random_inputs(batch) for batch in (8, 1)}
    found = survey(
        servable, origin, dict.fromkeys(inputs, plans), inputs, time_limit=0.3, cache=cache, on_step=live_longer
    )
    assert [[row.status for row in one.trials] for one in found] == [
        [Status.RAN, Status.CRASHED],
        [Status.RAN, Status.RAN],
    ]
    assert planted.nothing_left()


def test_its_files_go_with_it_and_with_the_next_one(surveyed, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = tmp_path / "tfperf-survey-of-a-process-that-was-killed"
    left.mkdir()
    (left / LOCK).touch()
    os.utime(left / LOCK, (0, 0))
    seen = []
    surveyed(LITERT.model_copy(update={"precision": "bfloat16"}), on_step=lambda _: seen.extend(tmp_path.iterdir()))
    assert {path.name.startswith("tfperf-survey-") for path in seen} == {True}
    assert left not in seen
    assert list(tmp_path.iterdir()) == []


def test_largest_answers_that_are_not_there_cannot_be_asked_for(tmp_path):
    servable = Servable.from_net(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, name="price")]))
    inputs = {1: servable.signature.random_inputs(1)}
    with pytest.raises(ValueError, match=r"^expected an output with several scores in a row, .*: price \(any, 1\)"):
        survey(servable, NOWHERE, {1: [LITERT]}, inputs, cache=tmp_path, same_top1=True)


def test_conversions_are_made_from_the_model_that_is_opened_again(servable_of, tmp_path):
    saved = Servable.from_net(servable_of("cnn").net)
    saved.save(tmp_path / "cnn")
    again = Servable.from_saved_model(tmp_path / "cnn")
    arrays = {1: again.signature.random_inputs(8)}
    half = FROZEN.model_copy(update={"precision": "bfloat16"})
    origin, cache = Origin(str(tmp_path / "cnn")), tmp_path / "cache"
    (found,) = survey(again, origin, {1: [half, FROZEN]}, arrays, time_limit=0.3, cache=cache)
    refused, ran = found.trials
    assert found.answers_vary
    assert refused.status is Status.REFUSED
    words = "frozen, bfloat16, 1 thread, while it was converted: expected a Keras net to compute in bfloat16"
    assert refused.reason.startswith(words)
    assert (ran.status, ran.agreement.passed) == (Status.RAN, True)
    assert len(list(cache.iterdir())) == 1


def test_wrong_inputs_are_an_error(servable_of, cache):
    servable = servable_of("cnn")
    with pytest.raises(ValueError, match="expected the input images"):
        survey(servable, NOWHERE, {1: [LITERT]}, {1: [np.ones((1, 2), "float32")]}, cache=cache)


def test_it_ends_its_processes_when_it_is_interrupted(surveyed, monkeypatch):
    def interrupt(step):
        if step.startswith("measuring"):
            raise KeyboardInterrupt

    before = {process.pid for process in psutil.Process().children(recursive=True)}
    with pytest.raises(KeyboardInterrupt):
        surveyed(LITERT, ONNX, on_step=interrupt)
    assert {process.pid for process in psutil.Process().children(recursive=True)} <= before
