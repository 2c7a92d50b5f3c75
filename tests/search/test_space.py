"""The plans that a question admits."""

import itertools

import pytest

from tfperf.engines.catalog import ENGINES, find_engine
from tfperf.engines.plan import PRECISIONS, TRANSFORMATIONS, Plan
from tfperf.errors import EngineError
from tfperf.search.space import ROUNDING, Space

EVERY = tuple(engine.name for engine in ENGINES)


@pytest.fixture
def space(asked):
    """A function that makes a space of a question's fields."""

    def space(applicable=TRANSFORMATIONS, defaults=None, **fields):
        return Space(asked(**{"engines": EVERY, "tolerance": 0.1} | fields), applicable, defaults=defaults)

    return space


def test_every_plan_is_there_once_and_its_engine_takes_it(space):
    plans = list(space(threads=(1, 2), batches=(1, 4)).plans())
    assert len(plans) == len(set(plans))
    for plan in plans:
        find_engine(plan.engine).check(plan)
    wanted = 0
    for engine in ENGINES:
        settings = 2 * len(engine.precisions) * 2 ** len(engine.transformations)
        if engine.fixed_batch:
            wanted += 2 * settings
        else:  # half of the sets of transformations fix the batch, at each of the two sizes
            wanted += settings * 3 // 2 if "fixed_batch" in engine.transformations else settings
    assert len(plans) == wanted
    assert {plan.batch for plan in plans if plan.engine == "xla_aot"} == {1, 4}
    fixed = [plan for plan in plans if plan.engine == "xla_aot" or "fixed_batch" in plan.transformations]
    assert {plan.batch for plan in fixed} == {1, 4}
    assert {plan.batch for plan in plans if plan not in fixed} == {None}


def test_only_what_is_asked_for_is_there(space):
    found = space(
        engines=("graph", "litert"),
        precisions=("bfloat16", "int8"),
        transformations=("fuse_batch_norm",),
        threads=(3,),
    )
    assert list(found.plans()) == [
        Plan(engine="graph", precision="bfloat16", threads=3),
        Plan(engine="graph", precision="bfloat16", threads=3, transformations=("fuse_batch_norm",)),
        Plan(engine="litert", precision="int8", threads=3),
    ]


def test_transformations_are_those_that_change_the_net_and_that_the_engine_takes(space):
    found = space(("fuse_batch_norm", "constant_weights"))
    both = ((), ("fuse_batch_norm",), ("constant_weights",), ("fuse_batch_norm", "constant_weights"))
    assert found.transformations(find_engine("graph")) == both
    assert found.transformations(find_engine("frozen")) == both[:2]
    assert found.transformations(find_engine("onnx")) == ((),)
    assert space(()).transformations(find_engine("graph")) == ((),)
    fewer = space(transformations=("constant_weights",))
    assert fewer.transformations(find_engine("graph")) == ((), ("constant_weights",))
    assert list(map(len, space().transformations(find_engine("graph")))) == [0, 1, 1, 1, 2, 2, 2, 3]


@pytest.mark.parametrize(
    ("tolerance", "hopeless"),
    [
        (1e-4, {"bfloat16", "float16", "int8", "int8_static"}),
        (2**-12, {"bfloat16", "int8", "int8_static"}),
        (2**-13, {"bfloat16", "int8", "int8_static"}),
        (2**-10, set()),
        (0.0, {"bfloat16", "float16", "int8", "int8_static"}),
    ],
)
def test_a_precision_is_hopeless_whose_rounding_alone_is_more_than_twice_the_tolerance(space, tolerance, hopeless):
    found = space(tolerance=tolerance)
    assert {one for one in PRECISIONS if found.hopeless(one) is not None} == hopeless
    for one in hopeless:
        assert found.hopeless(one) == (
            f"{one} rounds by {ROUNDING[one]:.1g}, far more than the tolerance of {tolerance:.1g}"
        )
    assert found.precisions(find_engine("litert")) == tuple(
        one for one in find_engine("litert").precisions if one not in hopeless
    )


def test_with_labels_no_precision_is_hopeless(space):
    assert not any(map(space(tolerance=1e-9, accuracy_drop=0.01).hopeless, PRECISIONS))


def test_the_defaults_are_what_users_have_whatever_is_asked(space):
    assert space(engines=("onnx",), threads=(2,), precisions=("int8",)).defaults == (
        Plan(engine="predict"),
        Plan(engine="eager"),
        Plan(engine="graph"),
    )
    assert space(defaults=("xla",)).defaults == (Plan(engine="xla"),)


def test_probes_are_one_engine_with_each_number_of_threads(space, monkeypatch):
    absent = set()
    monkeypatch.setattr("tfperf.search.space.missing", lambda engine: "no" if engine.name in absent else None)
    for name in ("litert", "onnx", "openvino", "frozen", "graph"):
        assert space((), threads=(1, 2, 4)).probes() == tuple(Plan(engine=name, threads=one) for one in (1, 2, 4))
        absent.add(name)
    assert space(threads=(1, 2)).probes() == ()


def test_without_a_choice_of_threads_nothing_is_probed(space):
    assert space(threads=(2,)).probes() == ()
    assert space(threads=(1, 2), engines=("xla", "c_api")).probes() == ()
    assert space(threads=(1, 2), engines=("litert",), precisions=("bfloat16",)).probes() == ()
    hopeless = space(threads=(1, 2), engines=("litert",), precisions=("int8",), tolerance=1e-9)
    assert hopeless.probes() == ()
    (first, _) = space((), threads=(1, 2), engines=("litert",), precisions=("int8", "float16")).probes()
    assert first == Plan(engine="litert", precision="float16", threads=1)


def test_an_engine_is_looked_at_first_with_its_batch_size_fixed_where_one_is_asked_for(space):
    litert, xla = find_engine("litert"), find_engine("xla_aot")
    opened = Plan(engine="litert", threads=2)
    fixed = Plan(engine="litert", threads=2, batch=8, transformations=("fixed_batch",))
    one = space(batches=(8,))
    assert (one.first(litert, 2), one.first(litert, 2, otherwise=True)) == (fixed, opened)
    assert one.first(xla, 2) == Plan(engine="xla_aot", threads=2, batch=8)  # which takes no other
    several = space(batches=(1, 8, 64))
    assert (several.first(litert, 2), several.first(litert, 2, otherwise=True)) == (opened, fixed)
    assert several.first(xla, 2).batch == 8
    assert space(batches=(8,), transformations=("fold_batch_norm",)).first(litert, 2) == opened


def test_probes_are_plans_of_the_space(space):
    for engines in itertools.combinations(EVERY, 2):
        found = space(threads=(1, 2), engines=engines)
        assert set(found.probes()) <= set(found.plans())


def test_an_unknown_engine_is_refused(space):
    with pytest.raises(EngineError, match=r"^expected an engine \(.*\)\. Received: torch$"):
        space(engines=("graph", "torch"))
