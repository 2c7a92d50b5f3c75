"""A net converted for one batch size answers as the net does, at that size."""

import pytest
from pydantic import ValidationError

from tfperf.engines import ENGINES, Plan, build, check_runner, find_engine
from tfperf.engines.conversions import Conversions
from tfperf.errors import EngineError

FIXED = ("fixed_batch",)
TAKING = [engine.name for engine in ENGINES if "fixed_batch" in engine.transformations]


@pytest.mark.parametrize("net", ["cnn", "two", "lists", "signs"])
@pytest.mark.parametrize("engine", TAKING)
def test_it_answers_at_its_batch_alone(engine, net, servable_of, cache):
    servable = servable_of(net)
    with build(servable, Plan(engine=engine, batch=3, transformations=FIXED), cache=cache) as runner:
        arrays = servable.signature.random_inputs(3)
        check_runner(runner, arrays, servable.reference(arrays), 1e-4)
        with pytest.raises(ValueError, match="expected a batch of 3"):
            runner(*servable.signature.random_inputs(2))


@pytest.mark.parametrize("engine", TAKING)
@pytest.mark.parametrize("precision", ["int8", "int8_static"])
def test_its_scales_come_from_batches_of_its_size(engine, precision, servable_of, cache):
    if precision not in find_engine(engine).precisions:
        pytest.skip(f"{engine} has no {precision}")
    servable = servable_of("cnn")
    plan = Plan(engine=engine, precision=precision, batch=3, transformations=FIXED)
    with build(servable, plan, cache=cache) as runner:
        arrays = servable.signature.random_inputs(3)
        check_runner(runner, arrays, servable.reference(arrays))


@pytest.mark.parametrize("engine", TAKING)
def test_each_batch_has_a_conversion_of_its_own(engine, servable_of, cache):
    conversions = Conversions(servable_of("cnn"), cache)
    plans = [Plan(engine=engine), *(Plan(engine=engine, batch=size, transformations=FIXED) for size in (3, 4))]
    assert len({conversions.folder(plan) for plan in plans}) == 3
    assert conversions.folder(Plan(engine=engine, batch=4)) == conversions.folder(plans[0])


def test_it_needs_a_batch():
    with pytest.raises(ValidationError, match="expected a batch for fixed_batch"):
        Plan(engine="litert", transformations=FIXED)


def test_other_engines_do_not_take_it():
    with pytest.raises(EngineError, match=r"^expected transformations of frozen \("):
        find_engine("frozen").check(Plan(engine="frozen", batch=1, transformations=FIXED))
