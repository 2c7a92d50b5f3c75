"""Which plans are looked at next, for made-up costs over the whole space, and for what plans took on machines."""

import functools
import itertools
import json
import math
import random
from pathlib import Path
from statistics import geometric_mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfperf.engines.catalog import ENGINES, find_engine
from tfperf.engines.plan import PRECISIONS, TRANSFORMATIONS, Plan
from tfperf.search.candidates import Candidates
from tfperf.search.question import Question
from tfperf.search.space import Space
from tfperf.search.strategy import BEHIND_BATCH, GAIN_AT_LEAST, IN_FULL, MOST_CONTENDERS, NEAR

RECORDED = Path(__file__).with_name("recorded")
"""What `benchmarks/tune.py search --json` kept of searches that tried every plan, a file for each machine."""

EVERY = tuple(engine.name for engine in ENGINES)
SAME_PARTS = ("graph", "xla", "saved_model", "c_api", "litert", "onnx", "openvino")
"""Engines of which those of one kind take the same precisions and transformations."""


TIME_UP = "the time was up"


def space_of(engines=EVERY, threads=(1, 2, 4), **fields):
    applicable = fields.pop("applicable", TRANSFORMATIONS)
    computes_float16 = fields.pop("computes_float16", True)
    fields = {"tolerance": 0.1, "memory_limit": 2**30} | fields
    return Space(
        Question(engines=tuple(engines), threads=tuple(threads), **fields),
        applicable,
        computes_float16=computes_float16,
    )


def searched(space, cost, in_full=0):
    """Everything that is looked at, in order, as `Search` does it; and the candidates that chose."""
    seen = {}
    candidates = Candidates(space, lambda plan: seen.get(plan, math.inf), in_full=in_full)
    proposed = [*space.probes(), *space.defaults]
    seen |= {plan: cost(plan) for plan in proposed}
    plans = candidates.next()
    while plans:
        proposed += plans
        seen |= {plan: cost(plan) for plan in plans}
        plans = candidates.next()
    return proposed, seen, candidates


def searched_two_at_a_time(space, cost, choose, in_full=0):
    """The same, of which any may be done first."""
    seen = {plan: cost(plan) for plan in [*space.probes(), *space.defaults]}
    candidates = Candidates(space, lambda plan: seen.get(plan, math.inf), in_full=in_full)
    waiting, running = [], []
    while True:
        while len(running) < 2 and (waiting or (waiting := candidates.next(running))):
            running.append(waiting.pop(0))
        if not running:
            return [*seen], seen, candidates
        done = running.pop(choose(len(running)))
        assert done not in seen
        seen[done] = cost(done)


def check_proposals(space, proposed):
    """No plan twice, and none that was not asked for."""
    assert len(proposed) == len(set(proposed))
    assert set(proposed) <= {*space.plans(), *space.defaults}
    assert set(space.defaults) <= set(proposed)


def check_words(space, proposed, candidates):
    """Why the others were not looked at."""
    for plan in set(space.plans()) - set(proposed):
        for cut_short in ("", TIME_UP):
            words = candidates.why_not(plan, cut_short)
            assert words.isprintable()
            assert len(words) > 10
            assert "infx" not in words


def valley(numbers, bottom, steepness):
    """Costs that fall to the bottom and rise after it."""
    return {one: 1 + steepness * abs(place - bottom % len(numbers)) for place, one in enumerate(numbers)}


def test_a_sibling_is_tried_where_its_family_is_behind_only_in_another_precision():
    """TensorFlow is seen in bfloat16 first, LiteRT in float16, which makes both twice as fast."""
    space = space_of(("graph", "saved_model", "litert"), (1,), precisions=("bfloat16", "float16"))
    engines, precisions = {"graph": 1.0, "saved_model": 1.2, "litert": 1.1}, {"bfloat16": 1.0, "float16": 0.5}
    proposed, _, _ = searched(space, lambda plan: engines.get(plan.engine, 9.0) * precisions.get(plan.precision, 9.0))
    assert Plan(engine="graph", precision="float16", threads=1) in proposed


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_the_best_of_the_space_is_found_where_the_parts_of_a_plan_add_up(data):
    factor = st.floats(0.8, 1.0)
    engines = data.draw(st.lists(st.sampled_from(SAME_PARTS), min_size=1, unique=True).map(sorted))
    threads = data.draw(st.sets(st.integers(1, 64), min_size=1, max_size=5).map(sorted))
    precisions = data.draw(st.lists(st.sampled_from(PRECISIONS), min_size=1, unique=True))
    space = space_of(
        engines, threads, precisions=tuple(precisions), applicable=data.draw(st.sets(st.sampled_from(TRANSFORMATIONS)))
    )
    of_engine = {name: data.draw(st.floats(1.0, 1.4), label=name) for name in EVERY}
    of_precision = {one: data.draw(factor, label=one) for one in PRECISIONS}
    of_change = {one: data.draw(st.floats(0.9, 1.1), label=one) for one in TRANSFORMATIONS}
    of_change["fixed_batch"] = min(of_change["fixed_batch"], 1.0)  # it makes none slower
    of_threads = valley(threads, data.draw(st.integers(0, 4)), data.draw(st.floats(0.01, 0.5)))

    def cost(plan):
        changes = math.prod(of_change[one] for one in plan.transformations)
        by_itself = 2 * max(of_threads.values())  # what users have is never the best, whatever is asked for
        return of_engine[plan.engine] * of_precision[plan.precision] * changes * of_threads.get(plan.threads, by_itself)

    at_once = functools.partial(searched_two_at_a_time, choose=lambda many: data.draw(st.integers(0, many - 1)))
    proposed, seen, candidates = data.draw(st.sampled_from([searched, at_once]))(space, cost)
    check_proposals(space, proposed)
    check_words(space, proposed, candidates)
    asked = [plan for plan in space.plans() if plan.engine not in ("predict", "eager")]
    if asked:
        assert min(map(cost, asked)) == pytest.approx(min(seen[plan] for plan in asked if plan in seen))


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_it_ends_whatever_the_costs_are(data):
    engines = data.draw(st.lists(st.sampled_from(EVERY), min_size=1, unique=True).map(sorted))
    threads = data.draw(st.sets(st.integers(1, 8), min_size=1, max_size=3).map(sorted))
    batches = data.draw(st.sets(st.integers(1, 64), min_size=1, max_size=3).map(sorted))
    precisions = data.draw(st.lists(st.sampled_from(PRECISIONS), min_size=1, unique=True))
    space = space_of(
        engines,
        threads,
        batches=tuple(batches),
        precisions=tuple(precisions),
        tolerance=data.draw(st.sampled_from([0.0, 1e-4, 2e-4, 0.1])),
        applicable=data.draw(st.sets(st.sampled_from(TRANSFORMATIONS))),
    )
    costs = st.sampled_from([0.5, 1.0, 1.1, 2.0, 10.0, math.inf])
    known = {}

    def cost(plan):
        if plan not in known:
            known[plan] = data.draw(costs, label=str(plan))
        return known[plan]

    for in_full in (0, math.inf):
        proposed, _, candidates = searched(space, cost, in_full)
        check_proposals(space, proposed)
        check_words(space, proposed, candidates)


def test_words_where_threads_alone_keep_a_family_from_running():
    """A plan ran with 4 threads and its batch norms fused, and nothing unchanged does: that is no number of times."""
    applicable = {"fuse_batch_norm", "fixed_batch"}
    space = space_of(["frozen"], [1, 4, 8], batches=(3, 32, 36), tolerance=0.0, applicable=applicable)

    def cost(plan):
        changed = {4: 1.0, 8: 2.0} if plan.transformations else {1: 10.0, 8: 2.0, None: math.inf}
        return changed.get(plan.threads, math.inf)

    proposed, _, candidates = searched(space, cost)
    check_words(space, proposed, candidates)


def recorded():
    """The searches of all files, by the names of their nets."""
    for file in sorted(RECORDED.glob("*.json")):
        for net, search in json.loads(file.read_text()).items():
            yield pytest.param(search, id=f"{file.stem}: {net}")


@pytest.mark.parametrize("batches", [(1,), (1, 4)])
@pytest.mark.parametrize("only", ["fixed", "open"])
def test_an_engine_that_takes_the_net_for_one_batch_only_or_for_any_only_is_tried_with_that(only, batches):
    space = space_of(["xla_aot", "litert"], threads=(1, 2), batches=batches)

    def cost(plan):
        if plan.engine == "litert" and ("fixed_batch" in plan.transformations) == (only == "open"):
            return math.inf  # as its converter refuses loops over time that takes any
        return {"litert": 1.2}.get(plan.engine, 1.0) * {"int8": 0.5}.get(plan.precision, 1.0) / (plan.threads or 0.01)

    proposed, _, candidates = searched(space, cost)
    check_proposals(space, proposed)
    check_words(space, proposed, candidates)
    best = min(proposed, key=cost)
    assert (best.engine, best.precision, best.threads) == ("litert", "int8", 2)
    assert (best.fixed_batch is not None) == (only == "fixed")


@pytest.mark.parametrize("search", list(recorded()))
def test_what_may_win_is_looked_at_on_machines_that_tried_every_plan(search):
    """Whatever the order, and though each look is up to a fifth too slow, as beside others on the same processor."""
    space = Space(
        Question.model_validate_json(json.dumps(search["question"])),
        search["applicable"],
        computes_float16=search["computes_float16"],
    )
    took, apart = search["every plan"], {plan: geometric_mean(times) for plan, times in search["apart"].items()}
    # The machine drifts from the one to the other
    drift = geometric_mean(took[plan] / apart[plan] for plan in apart if plan in took)
    took = took | {plan: drift * seconds for plan, seconds in apart.items()}
    best = drift * min(apart.values())
    for seed in range(10):
        chance = random.Random(seed)
        proposed, seen, _ = searched_two_at_a_time(
            space,
            lambda plan, chance=chance: took.get(str(plan), math.inf) * chance.uniform(1, 1.2),
            chance.randrange,
            in_full=IN_FULL.value,
        )
        check_proposals(space, proposed)
        ranked = sorted(seen, key=seen.get)[: MOST_CONTENDERS.number]
        contenders = [plan for plan in ranked if seen[plan] <= NEAR.value * seen[ranked[0]]]
        assert min(took[str(plan)] for plan in contenders) <= 1.03 * best
        assert len(proposed) < search["plans"] / 4


def test_after_the_probes_comes_an_engine_of_each_kind_with_the_threads_that_suit():
    space = space_of()
    cost = {2: 1.0}
    seen = {}
    candidates = Candidates(space, lambda plan: seen.get(plan, math.inf), in_full=0)
    seen |= {plan: cost.get(plan.threads, 2.0) for plan in space.probes()}
    first = candidates.next()
    assert {(plan.engine, plan.threads) for plan in first} == {
        (name, 2) for name in ("frozen", "xla_aot", "onnx", "openvino")
    }  # litert was the probe; frozen stands for TensorFlow's kernels, xla_aot for XLA's
    assert {plan.precision for plan in first} == {"float32"}
    assert {plan.engine for plan in first if plan.transformations} == {"onnx", "openvino"}
    assert {plan.transformations for plan in first} == {(), ("fixed_batch",)}


@pytest.mark.parametrize(("slower", "tried"), [(1.5, ["litert"]), (1.1, ["litert", "onnx"])])
def test_threads_that_slowed_the_probes_are_not_tried_with_other_kinds(slower, tried):
    """Nor those that gained them nothing with one whose plans take long to compile."""
    space = space_of(("litert", "xla_aot", "onnx"), (1, 2), precisions=("float32",), applicable=())
    base = {"litert": 1.2, "xla_aot": 1.0, "onnx": 1.1}
    proposed, _, candidates = searched(
        space, lambda plan: base.get(plan.engine, 9.0) * (slower if plan.threads == 2 else 1.0)
    )
    twos = {plan.engine for plan in proposed if plan.threads == 2}
    assert twos == set(tried)
    words = candidates.why_not(Plan(engine="xla_aot", threads=2, batch=1), "")
    compiled = ", and each plan of xla_aot is compiled" if "onnx" in tried else ""
    assert words == f"2 threads in place of 1 made litert {slower:.2f}x as slow{compiled}"


def test_threads_of_what_is_compiled_are_tried_where_they_gained_the_probes_and_where_there_are_none():
    for engines, gained in ((("litert", "xla_aot"), 0.85), (("xla_aot",), 1.0)):
        space = space_of(engines, (1, 2), precisions=("float32",), applicable=())
        times = {1: 1.0, 2: gained}
        # XLA's own are best with one thread
        proposed, _, _ = searched(
            space, lambda plan, times=times: times.get(plan.threads, 9.0) if plan.engine == "litert" else 1.0
        )
        assert {plan.threads for plan in proposed if plan.engine == "xla_aot"} == (
            {2} if "litert" in engines else {1, 2}
        )


@pytest.mark.parametrize(("behind", "tried"), [(GAIN_AT_LEAST.value - 0.1, True), (GAIN_AT_LEAST.value + 0.1, False)])
def test_a_kind_near_the_best_is_tried_in_a_precision_that_was_no_gain_elsewhere(behind, tried):
    space = space_of(("frozen", "openvino"), (1,), precisions=("float32", "bfloat16"), applicable=())
    costs = {"frozen": {"float32": 1.0, "bfloat16": 3.0}, "openvino": {"float32": behind, "bfloat16": 0.5}}
    proposed, _, candidates = searched(space, lambda plan: costs.get(plan.engine, {}).get(plan.precision, 9.0))
    plan = Plan(engine="openvino", precision="bfloat16", threads=1)
    assert Plan(engine="frozen", precision="bfloat16", threads=1) in proposed
    assert (plan in proposed) == tried
    if not tried:
        assert candidates.why_not(plan, "") == (
            f"in bfloat16 openvino would have to be {behind:.1f}x as fast; it gains {GAIN_AT_LEAST.value:.1f}x at most"
        )


def test_where_the_first_of_a_kind_does_not_run_the_next_is_tried():
    space = space_of(("frozen", "graph", "saved_model"), (1,), precisions=("float32",), applicable=())
    costs = {"frozen": math.inf, "saved_model": math.inf, "graph": 1.0}
    proposed, _, _ = searched(space, lambda plan: 5.0 if plan.threads is None else costs[plan.engine])
    assert [plan.engine for plan in proposed if plan.threads] == ["frozen", "saved_model", "graph"]


@pytest.mark.parametrize(("by_function", "tried"), [(11.0, True), (30.0, False)])
def test_an_engine_whose_calls_alone_take_longer_than_the_best_is_left_alone(by_function, tried):
    """The frozen graph tells what tf.function's kernels take, and so what its Python does."""
    space = space_of(("frozen", "saved_model", "litert"), (1,), precisions=("float32",), applicable=())
    costs = {"frozen": 9.0, "litert": 8.0, "saved_model": 10.0}
    proposed, _, candidates = searched(space, lambda plan: by_function if plan.threads is None else costs[plan.engine])
    plan = Plan(engine="saved_model", threads=1)
    assert (plan in proposed) == tried
    if not tried:
        assert candidates.why_not(plan, "") == "a call of a tf.function from Python takes longer than the best of all"


def test_a_kind_far_behind_is_left_alone_and_the_words_say_so():
    space = space_of(("litert", "onnx"), (1,))
    slow = {"litert": 1.0, "onnx": BEHIND_BATCH.value + 0.1}
    proposed, _, candidates = searched(space, lambda plan: slow.get(plan.engine, 9.0))
    only = Plan(engine="onnx", threads=1, batch=1, transformations=("fixed_batch",))
    assert [plan for plan in proposed if plan.engine == "onnx"] == [only]
    assert len([plan for plan in proposed if plan.engine == "litert"]) >= 4
    words = candidates.why_not(Plan(engine="onnx", precision="int8", threads=1), "")
    assert words == f"the best with the kernels of onnx, {only}, takes 3.1x as long as the best of all"
    words = candidates.why_not(Plan(engine="onnx", threads=1), "")
    assert words == "the same with its batch size fixed was looked at, and that makes none slower"


def test_what_the_best_kind_gains_spares_the_others_a_look():
    """What a precision gains for one kind it may gain for another twice, but no more."""
    space = space_of(
        ("litert", "onnx", "openvino"), (1,), applicable=(), precisions=("float32", "int8_static", "float16")
    )
    costs = {"litert": 1.0, "onnx": 2.1, "openvino": 1.1}

    def cost(plan):
        return costs.get(plan.engine, 9.0) * (0.3 if plan.precision == "int8_static" else 1.0)

    proposed, _, candidates = searched(space, cost)
    tried = {name: {plan.precision for plan in proposed if plan.engine == name} for name in costs}
    assert tried["litert"] == {"float32", "float16", "int8_static"}
    assert tried["openvino"] == {"float32", "int8_static"}  # 3.3x is gained by int8, and nothing by float16
    assert tried["onnx"] == {"float32"}
    words = "in int8_static onnx would have to be 7.0x as fast; it gains 6.7x at most"
    assert candidates.why_not(Plan(engine="onnx", precision="int8_static", threads=1), "") == words


def test_what_gains_much_in_one_kind_is_tried_in_another_that_is_far_behind_by_then():
    space = space_of(("litert", "openvino"), (1,), applicable=(), precisions=("float32", "int8_static"))
    costs = {("litert", "float32"): 1.0, ("litert", "int8_static"): 0.2, ("openvino", "float32"): 1.2}
    costs["openvino", "int8_static"] = 0.18
    _, seen, _ = searched(space, lambda plan: costs.get((plan.engine, plan.precision), 9.0))
    assert min(seen, key=seen.get) == Plan(engine="openvino", precision="int8_static", threads=1)


def test_one_kind_may_gain_by_int8_what_another_gains_by_int8_static():
    """Figures of resnet18 with AMX: ONNX Runtime is no faster in int8, and LiteRT is five times as fast."""
    space = space_of(("litert", "onnx", "openvino"), (1,), applicable=(), precisions=("float32", "int8", "int8_static"))
    costs = {("litert", "float32"): 1.1, ("onnx", "float32"): 0.9, ("openvino", "float32"): 1.0}
    costs |= {("onnx", "int8"): 1.0, ("litert", "int8"): 0.2, ("litert", "int8_static"): 0.5}
    costs |= {("onnx", "int8_static"): 0.25, ("openvino", "int8_static"): 0.25}
    _, seen, _ = searched(space, lambda plan: costs.get((plan.engine, plan.precision), 9.0))
    assert min(seen, key=seen.get) == Plan(engine="litert", precision="int8", threads=1)


def test_one_kind_may_gain_twice_as_much_by_integers_as_another():
    """Figures of resnet18 with AMX: int8_static makes OpenVINO 4.9x as fast, int8 makes the slower LiteRT 9.6x."""
    space = space_of(("litert", "onnx", "openvino"), (1,), applicable=(), precisions=("float32", "int8", "int8_static"))
    costs = {("litert", "float32"): 14.1, ("onnx", "float32"): 7.1, ("openvino", "float32"): 7.9}
    costs |= {("onnx", "int8"): 49.0, ("litert", "int8"): 1.5, ("litert", "int8_static"): 1.6}
    costs |= {("onnx", "int8_static"): 2.1, ("openvino", "int8_static"): 1.6}
    _, seen, _ = searched(space, lambda plan: costs.get((plan.engine, plan.precision), 9.0))
    assert min(seen, key=seen.get) == Plan(engine="litert", precision="int8", threads=1)


def test_what_int8_gained_one_kind_counts_for_int8_static_in_another_where_nobody_has_seen_that():
    space = space_of(("litert", "openvino"), (1,), applicable=(), precisions=("float32", "int8", "int8_static"))
    costs = {("litert", "float32"): 20.0, ("openvino", "float32"): 26.0, ("litert", "int8"): 1.4}
    costs |= {("litert", "int8_static"): math.inf, ("openvino", "int8_static"): 1.3}
    _, seen, _ = searched(space, lambda plan: costs.get((plan.engine, plan.precision), 99.0))
    assert min(seen, key=seen.get) == Plan(engine="openvino", precision="int8_static", threads=1)


def test_a_plan_in_float32_is_not_said_to_need_a_gain_by_float32():
    space = space_of(("litert",), (1,), applicable=(), precisions=("float32", "int8"))
    _, _, candidates = searched(space, lambda plan: 1.0 if plan.precision == "int8" else 20.0)
    assert "would have to be" not in candidates.why_not(Plan(engine="litert", threads=2), "")


def test_an_engine_that_does_not_run_is_left_alone_and_the_words_say_so():
    space = space_of(("litert", "onnx"), (1,))
    proposed, _, candidates = searched(space, lambda plan: math.inf if plan.engine == "onnx" else 1.0)
    plain = Plan(engine="onnx", threads=1)
    of_one_batch = plain.model_copy(update={"batch": 1, "transformations": ("fixed_batch",)})
    assert [plan for plan in proposed if plan.engine == "onnx"] == [of_one_batch, plain]
    words = candidates.why_not(Plan(engine="onnx", precision="int8", threads=1), "")
    assert words == "no engine with the kernels of onnx runs this net"


def test_what_helps_one_engine_is_tried_with_its_like():
    """Once quantized, or with other threads, another engine with the same kernels may be ahead."""
    space = space_of(("frozen", "saved_model", "c_api"), (1,), precisions=("float32", "bfloat16"), applicable=())
    costs = {("frozen", "float32"): 1.0, ("frozen", "bfloat16"): 0.8, ("saved_model", "bfloat16"): 0.5}

    def cost(plan):
        return 2.0 if plan.threads is None else costs.get((plan.engine, plan.precision), 0.9)

    proposed, seen, candidates = searched(space, cost)
    assert min(seen, key=seen.get) == Plan(engine="saved_model", precision="bfloat16", threads=1)
    untried = Plan(engine="c_api", threads=1)
    assert untried not in proposed
    assert candidates.why_not(untried, "").startswith("saved_model, bfloat16, 1 thread has the same kernels")


def test_others_of_a_kind_that_is_behind_are_left_alone():
    space = space_of(("frozen", "c_api", "litert"), (1,), precisions=("float32",), applicable=())
    proposed, _, candidates = searched(space, lambda plan: {"frozen": 1.8, "litert": 1.0}.get(plan.engine, 9.0))
    untried = Plan(engine="c_api", threads=1)
    assert untried not in proposed
    words = "frozen, 1 thread has the same kernels, and takes 1.8x as long as the best of all"
    assert candidates.why_not(untried, "") == words


@pytest.mark.parametrize("best", [1, 2, 8, 64])
def test_an_engine_for_one_batch_size_climbs_to_the_best(best):
    space = space_of(("xla_aot",), (1,), batches=(1, 2, 4, 8, 16, 32, 64), applicable=())
    _, seen, _ = searched(space, lambda plan: 9.0 if plan.batch is None else 1 + abs(math.log2(plan.batch / best)))
    assert min(seen, key=seen.get).batch == best


@pytest.mark.parametrize(("objective", "tried"), [("latency", False), ("size", True)])
def test_float16_without_arithmetic_for_it_is_no_gain_in_time(objective, tried):
    space = space_of(("frozen", "litert"), (1,), applicable=(), computes_float16=False, objectives=(objective,))
    proposed, _, candidates = searched(space, lambda plan: 1.0)
    plans = {engine: Plan(engine=engine, precision="float16", threads=1) for engine in ("frozen", "litert")}
    assert plans["litert"] in proposed  # whose float16 is that of the stored weights
    assert (plans["frozen"] in proposed) == tried
    if not tried:
        words = "nothing here computes in float16: each number would be converted to float32 and back"
        assert candidates.why_not(plans["frozen"], "") == words


def test_words_for_a_plan_after_the_time_was_up():
    space = space_of(("graph", "litert"), tolerance=1e-4)
    _, _, candidates = searched(space, lambda plan: 1.0)
    assert candidates.why_not(Plan(engine="graph", threads=1), TIME_UP) == TIME_UP
    assert "far more than the tolerance" in candidates.why_not(Plan(engine="litert", precision="int8"), TIME_UP)


def test_words_after_the_time_was_up_tell_what_was_known_before():
    """A plan that would not have been looked at with more time either was not left alone for lack of it."""
    space = space_of(("litert", "onnx", "predict"), (1,))
    slow = {"litert": 1.0, "onnx": BEHIND_BATCH.value + 0.1}
    _, _, candidates = searched(space, lambda plan: slow.get(plan.engine, 9.0))
    plans = [Plan(engine="onnx", precision="int8", threads=1), Plan(engine="predict", threads=1)]
    words = [candidates.why_not(plan, TIME_UP) for plan in plans]
    assert words == [candidates.why_not(plan, "") for plan in plans]
    assert "takes 3.1x as long as the best of all" in words[0]
    assert words[1] == "predict spends its time in Python, whatever its settings"


def test_words_where_the_time_was_up_before_a_kind_was_tried():
    """Nobody can say that no engine of a kind runs the net before all were tried."""
    space = space_of(("litert", "onnx"), (1,))
    seen = dict.fromkeys(space.defaults, 9.0)
    candidates = Candidates(space, lambda plan: seen.get(plan, math.inf), in_full=0)
    litert, onnx = sorted(candidates.next(), key=lambda plan: plan.engine)
    seen[litert] = 1.0
    other = Plan(engine="onnx", precision="int8", threads=1)
    candidates.forget([onnx])
    assert [candidates.why_not(plan, TIME_UP) for plan in (onnx, other)] == [TIME_UP] * 2
    assert candidates.next() == [onnx]
    assert candidates.why_not(other, TIME_UP) == TIME_UP  # it may run with any batch size
    assert candidates.next() == [Plan(engine="onnx", threads=1)]
    assert candidates.why_not(other, TIME_UP) == "no engine with the kernels of onnx runs this net"


def test_words_for_a_precision_that_the_time_kept_from_being_looked_at():
    space = space_of(("onnx",), (1,), precisions=("float32", "int8"))
    seen = dict.fromkeys(space.defaults, 9.0)
    candidates = Candidates(space, lambda plan: seen.get(plan, math.inf), in_full=0)
    plans = candidates.next()
    while plans[0].precision == "float32":
        seen |= dict.fromkeys(plans, 1.0)
        plans = candidates.next()
    assert {plan.precision for plan in plans} == {"int8"}
    candidates.forget(plans)
    assert {candidates.why_not(plan, TIME_UP) for plan in plans} == {TIME_UP}


@pytest.mark.parametrize(("threads", "in_full"), [((1,), True), ((1, 2, 4, 8, 16), False)])
def test_a_question_with_few_plans_is_tried_in_full(threads, in_full):
    """However slow they are; by facts alone some are left out, and the families that were fast come first."""
    space = space_of(("predict", "eager", "frozen", "litert"), threads, computes_float16=False)

    def cost(plan):
        return {"litert": 1.0, "frozen": 100.0}.get(plan.engine, 1000.0)

    proposed, _, candidates = searched(space, cost, in_full=60)
    check_proposals(space, proposed)
    check_words(space, proposed, candidates)
    assert candidates.in_full == in_full == (len(list(space.plans())) <= 60)
    frozen = [plan for plan in proposed if plan.engine == "frozen"]
    if not in_full:
        assert len(frozen) == 1
        return
    assert {(plan.precision, plan.transformations) for plan in frozen} == set(
        itertools.product(("float32", "bfloat16"), space.transformations(find_engine("frozen")))
    )
    assert {plan.precision for plan in proposed if plan.engine == "litert"} == {*find_engine("litert").precisions}
    engines = [plan.engine for plan in proposed if plan not in space.defaults]
    assert engines[2:] == sorted(engines[2:], reverse=True)  # after the first of each
    reasons = {candidates.why_not(plan, "") for plan in set(space.plans()) - set(proposed)}
    assert reasons == {
        "predict spends its time in Python, whatever its settings",
        "eager spends its time in Python, whatever its settings",
        "nothing here computes in float16: each number would be converted to float32 and back",
        "the same with its batch size fixed was looked at, and that makes none slower",
    }


def test_in_full_what_runs_for_any_batch_only_is_tried_with_that():
    space = space_of(("litert", "onnx"), (1, 2), precisions=("float32", "int8"))

    def cost(plan):
        return math.inf if plan.engine == "litert" and plan.batch else 1.0

    proposed, _, _ = searched_two_at_a_time(space, cost, lambda many: many - 1, in_full=IN_FULL.value)
    tried = {name: [plan for plan in proposed if plan.engine == name] for name in ("litert", "onnx")}
    assert len(tried["litert"]) == 2 * len(tried["onnx"]) == 8
    assert {plan.batch for plan in tried["onnx"]} == {1}


class Remembers(Candidates):
    """Remembers what it decided of the plans that it proposes, and of those that it does not."""

    def skip_reason(self, plan, base=None):
        why = super().skip_reason(plan, base)
        self.decided[plan] = why
        return why


def test_what_decides_is_what_is_told():
    space = space_of((*SAME_PARTS, "frozen", "xla_aot"))
    seen = dict.fromkeys([*space.probes(), *space.defaults], 1.0)
    candidates = Remembers(space, lambda plan: seen.get(plan, math.inf), in_full=0)
    candidates.decided = {}
    seen |= dict.fromkeys(candidates.next(), 1.5)
    while plans := candidates.next():
        assert [candidates.decided[plan] for plan in plans] == [""] * len(plans)
        seen |= {plan: 1.0 + len(str(plan)) / 100 for plan in plans}
    for plan in set(space.plans()) - set(seen):
        words = candidates.why_not(plan, "")
        assert words == candidates.decided[plan] or "no gain by itself" in words or "made it slower" in words
