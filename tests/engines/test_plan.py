"""What a plan is, and which plans an engine refuses."""

import pytest
from pydantic import ValidationError

from tfperf.engines import ENGINES, PRECISIONS, Plan, find_engine
from tfperf.errors import EngineError


def test_a_plan_cannot_be_changed():
    plan = Plan(engine="litert")
    with pytest.raises(ValidationError, match="frozen"):
        plan.threads = 2
    assert {plan: 1}[Plan(engine="litert", precision="float32", threads=None, batch=None)] == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"engine": ""},
        {"engine": "lite\nrt"},
        {"engine": 1},
        {"engine": "litert", "precision": "float64"},
        {"engine": "litert", "threads": 0},
        {"engine": "litert", "threads": "1"},
        {"engine": "litert", "threads": 1.0},
        {"engine": "litert", "batch": -1},
        {"engine": "litert", "batch": True},
        {"engine": "litert", "speed": 1},
        {},
    ],
    ids=str,
)
def test_a_plan_takes_nothing_else(wrong):
    with pytest.raises(ValidationError):
        Plan(**wrong)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "onnx"),
        ({"threads": 1}, "onnx, 1 thread"),
        ({"precision": "int8", "threads": 2, "batch": 32}, "onnx, int8, 2 threads, batch 32"),
        ({"batch": 1}, "onnx, batch 1"),
    ],
)
def test_a_plan_in_words(fields, words):
    assert str(Plan(engine="onnx", **fields)) == words


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_an_engine_refuses_what_it_does_not_have(engine):
    batch = 1 if engine.fixed_batch else None
    for precision in PRECISIONS:
        plan = Plan(engine=engine.name, precision=precision, batch=batch)
        if precision in engine.precisions:
            engine.check(plan)
            continue
        with pytest.raises(EngineError) as refused:
            engine.check(plan)
        assert str(refused.value) == (
            f"expected a precision of {engine.name} ({', '.join(engine.precisions)}). Received: {precision}"
        )


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_a_fixed_batch_must_be_given(engine):
    if not engine.fixed_batch:
        return engine.check(Plan(engine=engine.name))
    with pytest.raises(EngineError, match=f"^{engine.name} is built for one batch size; give it.*batch=1"):
        engine.check(Plan(engine=engine.name))
    return engine.check(Plan(engine=engine.name, batch=4))


def test_engines_are_found_by_name():
    assert [find_engine(engine.name) for engine in ENGINES] == list(ENGINES)
    with pytest.raises(EngineError, match=r"^expected an engine \(predict, eager, .*xla_aot\)\. Received: lite$"):
        find_engine("lite")


@pytest.mark.parametrize("settings", [{"threads": 10**6}, {"threads": 0}, {"batch": 2**31}])
def test_what_would_end_the_process_is_no_plan(settings):
    with pytest.raises(ValueError, match=r"than or equal|less than"):
        Plan(engine="frozen", **settings)
