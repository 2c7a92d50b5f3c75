"""Plans side by side: each is measured, or has a reason."""

import importlib.util

import numpy as np
import psutil
import pytest

from tfperf.engines import Plan
from tfperf.engines.survey import Model, State, median_seconds, survey
from tfperf.exports.servable import Servable

NOWHERE = Model("no model: the plans here load what was converted")
LITERT, ONNX, FROZEN = (Plan(engine=name, threads=1) for name in ("litert", "onnx", "frozen"))

DYING = """
def run(*arrays):
    if next(count) == 20:
        sys.stderr.write("\\x1b[31mout of luck")
        os._exit(7)
    return genuine_run(*arrays)
genuine_run = runner.run
if plan.precision == "float16":
    runner.run = run
"""


@pytest.fixture(scope="module")
def surveyed(servable_of, cache):
    """A function that surveys plans of the small CNN at one batch size or several."""

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
        assert found.ran == list(found.rows)
        assert [row.plan for row in found.rows] == [LITERT, ONNX, FROZEN]
        names = [row.name for row in found.rows]
        assert names == [f"{engine}, 1 thread, batch {found.batch}" for engine in ("litert", "onnx", "frozen")]
        assert [one.name for one in found.comparison.measurements] == names
        assert len(found.comparison.ratios) == 3
        for row, measurement in zip(found.rows, found.comparison.measurements, strict=True):
            assert (row.state, row.reason) == (State.RAN, "")
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
    memory = {row.plan.engine: row.measurement.memory.resident for row in both[0].rows}
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
    told = {(row.plan.engine, row.plan.precision): (row.state, row.reason) for row in found.rows}
    assert told == {
        ("onnx", "float32"): (State.MISSING, "onnx is missing (onnxruntime); pip install 'tfperf[onnx]'"),
        ("litert", "bfloat16"): (
            State.REFUSED,
            "expected a precision of litert (float32, float16, int8, int8_static). Received: bfloat16",
        ),
        ("litert", "float32"): (State.RAN, ""),
        ("xla_aot", "float32"): (
            State.REFUSED,
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
    (row,) = found.rows
    assert not found.answers_vary
    assert row.state is State.REFUSED
    assert row.reason.startswith("wrong answers: litert, 1 thread DISAGREES: relative error ")
    assert found.comparison is None


def test_a_plan_that_dies_while_it_is_measured_fails_alone(surveyed, planted):
    planted(DYING)
    dying = LITERT.model_copy(update={"precision": "float16"})
    (found,) = surveyed(LITERT, dying, ONNX)
    rows = {row.plan: row for row in found.rows}
    assert rows[dying].state is State.FAILED
    assert rows[dying].reason.endswith("its process ended with exit code 7:  [31mout of luck")
    assert rows[dying].measurement is None
    assert [row.plan for row in found.ran] == [LITERT, ONNX]
    assert [one.name for one in found.comparison.measurements] == [rows[plan].name for plan in (LITERT, ONNX)]


def test_a_net_that_an_engine_cannot_take_is_refused(servable_of, tmp_path):
    saved = Servable.from_net(servable_of("cnn").net)
    saved.save(tmp_path / "cnn")
    again = Servable.from_saved_model(tmp_path / "cnn")
    arrays = {1: again.signature.random_inputs(1)}
    half = FROZEN.model_copy(update={"precision": "bfloat16"})
    (found,) = survey(again, NOWHERE, {1: [half]}, arrays, cache=tmp_path / "cache")
    (row,) = found.rows
    assert found.answers_vary
    assert row.state is State.REFUSED
    assert row.reason.startswith("expected a Keras net to compute in bfloat16")


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
