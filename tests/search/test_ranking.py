"""How trials rank: what is better, what they cost, which may be the best, and who has won."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfperf.engines.plan import Plan
from tfperf.measure import Comparison, Stop, Verdict
from tfperf.measure.comparison import paired
from tfperf.search.question import OBJECTIVES
from tfperf.search.ranking import Ranking, cost, costs_in, pareto_front, per_example, winner_of, within_limits
from tfperf.search.strategy import FINALISTS, MOST_CONTENDERS, NEAR, RIVAL
from tfperf.trials.trial import Status


@pytest.mark.parametrize(
    ("objective", "least"), [("latency", 0.02), ("throughput", 0.005), ("size", 3000), ("memory", 2**22)]
)
def test_costs_are_what_is_to_be_small(tried, objective, least):
    trial = tried("graph", 0.02, batch=4, size=3000, memory=2**22)
    assert cost(trial, objective) == pytest.approx(least)


def test_no_cost_is_nothing(tried):
    """One is divided by another."""
    assert cost(tried("graph", memory=0), "memory") == 1


def test_times_that_are_better_known_count(tried):
    trial = tried("graph", 0.02, batch=4)
    assert [cost(trial, one, 0.04) for one in ("latency", "throughput")] == [0.04, 0.01]
    assert cost(trial, "size", 0.04) == 1000


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("status", [one for one in Status if one is not Status.RAN])
def test_what_did_not_run_costs_without_end(tried, objective, status):
    assert cost(tried("graph", status=status), objective) == math.inf
    assert cost(tried("graph", status=status), objective, 1e-3) == math.inf


def test_what_ran_at_first_and_failed_later_costs_without_end(tried):
    assert cost(tried("graph").model_copy(update={"status": Status.CRASHED}), "latency") == math.inf


def test_where_size_counts_what_loads_nothing_has_no_chance(tried):
    assert cost(tried("predict", size=None), "size") == math.inf
    assert cost(tried("predict", size=None), "latency") == 1e-3


def test_limits_are_of_a_call(tried, asked):
    question = asked(latency_limit=2e-3)
    assert within_limits(tried("graph", 2e-3), question)
    assert not within_limits(tried("graph", 2.01e-3, batch=64), question)
    assert not within_limits(tried("graph", 1e-3), question, 2.01e-3)
    assert within_limits(tried("graph", 3e-3), question, 1.9e-3)
    assert within_limits(tried("graph", 1e9), asked())
    assert not within_limits(tried("graph", status=Status.WRONG), asked())


def test_seconds_come_from_the_comparison(compared):
    assert costs_in(None) == {}
    assert costs_in(compared({"a": 1.0, "b": 2.0})) == pytest.approx({"a": 1.0, "b": 2.0}, rel=0.01)


@given(
    st.integers(1, 4).flatmap(
        lambda size: st.lists(
            st.lists(st.sampled_from([0.0, 1.0, 2.0, 3.0, math.inf]), min_size=size, max_size=size), max_size=9
        )
    )
)
def test_the_front_is_all_that_nothing_surpasses(rows):
    costs = {str(place): row for place, row in enumerate(rows)}

    def surpassed(mine):
        return any(
            all(a <= b for a, b in zip(other, mine, strict=True))
            and any(a < b for a, b in zip(other, mine, strict=True))
            for other in rows
        )

    wanted = [name for name, row in costs.items() if all(map(math.isfinite, row)) and not surpassed(row)]
    assert list(pareto_front(costs)) == wanted


def test_a_ratio_for_each_example(compared):
    """b takes 3 times as long for 8 times as many."""
    by_call = compared({"a": 1.0, "b": 3.0, "c": 8.1})
    found = per_example(by_call, {"a": 1, "b": 8, "c": 8})
    assert found.measurements == by_call.measurements
    assert by_call.ratio("a", "b").verdict is Verdict.SLOWER
    assert found.ratio("a", "b").verdict is Verdict.FASTER
    for (one, rows), (other, others) in itertools.combinations({"a": 1, "b": 8, "c": 8}.items(), 2):
        by_hand = np.exp(np.median(np.log((found[one].turns / rows) / (found[other].turns / others))))
        assert found.ratio(one, other).estimate == pytest.approx(by_hand, rel=2e-3)
        scale = others / rows
        assert found.ratio(one, other).low == pytest.approx(by_call.ratio(one, other).low * scale)
        assert found.ratio(one, other).high == pytest.approx(by_call.ratio(one, other).high * scale)


def test_where_all_batches_are_alike_nothing_changes(compared):
    comparison = compared({"a": 1.0, "b": 3.0})
    assert per_example(comparison, {"a": 8, "b": 8}) is comparison


@pytest.fixture
def ranking(asked):
    """A function that notes trials of a question; users have `eager` and `graph`."""

    def ranking(*trials, **fields):
        made = Ranking(asked(**fields), (Plan(engine="eager"), Plan(engine="graph")))
        for trial in trials:
            made.note(trial)
        return made

    return ranking


def test_what_is_near_the_best_look_contends(ranking, tried):
    near, far, failed = (
        tried("onnx", NEAR.value * 0.99e-3),
        tried("graph", NEAR.value * 1.01e-3),
        tried("xla", status=Status.WRONG),
    )
    best = tried("litert", 1e-3)
    found = ranking(far, near, failed, best)
    assert found.contenders() == [best.name, near.name]
    assert found.is_far(far.name, best.name)
    assert not found.is_far(near.name, best.name)
    assert ranking().contenders() == ranking(failed).contenders() == []


def test_so_many_contend_at_most(ranking, tried):
    alike = [tried(Plan(engine="litert", threads=threads), 1e-3 + threads * 1e-6) for threads in range(1, 12)]
    assert ranking(*alike).contenders() == [trial.name for trial in alike[: MOST_CONTENDERS.number]]
    assert len(ranking(*alike, objectives=("size",)).contenders()) == FINALISTS.number


def test_with_several_objectives_the_front_contends(ranking, tried):
    fast, small, neither = tried("litert", 1e-3, size=900), tried("onnx", 9e-3, size=100), tried("xla", 9e-3, size=900)
    found = ranking(neither, small, fast, objectives=("latency", "size"))
    assert set(found.front()) == {fast.name, small.name}
    assert found.contenders() == [fast.name, small.name]
    assert ranking(fast, small).front() == ()


def test_a_round_in_turns_is_believed_before_the_look(ranking, tried, compared):
    lucky, other = tried("onnx", 1.0e-3), tried("litert", 1.2e-3)
    found = ranking(lucky, other)
    assert found.contenders() == [lucky.name, other.name]
    found.note_round(compared({lucky.name: 1.5e-3, other.name: 1.2e-3}))
    assert found.contenders() == [other.name, lucky.name]
    assert found.cost_of(lucky.plan) == pytest.approx(1.5e-3, rel=0.01)


def test_a_trial_that_came_out_otherwise_costs_what_it_does_now(ranking, tried):
    trial = tried("onnx", 1e-3)
    found = ranking(trial)
    assert found.cost_of(trial.plan) == pytest.approx(1e-3)
    found.note(tried("onnx", 2e-3))
    assert found.cost_of(trial.plan) == pytest.approx(2e-3)
    found.note(tried("onnx", status=Status.CRASHED))
    assert found.cost_of(trial.plan) == float("inf")
    assert found.cost_of(Plan(engine="litert")) == float("inf")


def test_what_exceeds_the_limit_costs_more_than_anything_yet_users_have_it(ranking, tried):
    slow, kept = tried("graph", 3e-3), tried("litert", 1e-3)
    found = ranking(slow, kept, latency_limit=2e-3)
    assert found.cost(slow.name) == float("inf")
    assert found.by_cost(found.trials) == found.contenders() == [kept.name]
    assert found.best_of_defaults([kept.name]) == found.defaults() == [slow.name]
    assert found.best_of_defaults([slow.name]) == []


def test_of_what_users_have_each_is_taken_at_its_best_batch(ranking, tried):
    graph = [tried("graph", seconds, batch=batch) for batch, seconds in ((1, 1e-3), (8, 2e-3), (64, 40e-3))]
    eager, failed = tried("eager", 4e-3), tried("predict", status=Status.REFUSED)
    found = ranking(*graph, eager, failed, objectives=("throughput",), batches=(1, 8, 64))
    assert found.batch_of(Plan(engine="graph")) == 8
    assert found.best_of_defaults([]) == [graph[1].name, eager.name]


@pytest.mark.parametrize(
    ("seconds", "limit", "why"),
    [
        ((1e-3, 1e-3, 1e-3), None, None),
        ((1e-3, 3e-3, 6e-3), None, "fewer examples a second from batch 1 on"),
        ((1e-3, 3e-3, 3.5e-3), None, None),  # the last was better again
        ((1e-3, 1e-3, 6e-3), 5e-3, "batch 4 takes longer than the limit already"),
        ((), None, None),
    ],
)
def test_larger_batches_are_tried_while_they_may_be_better(ranking, tried, seconds, limit, why):
    trials = [tried("onnx", one, batch=2**place) for place, one in enumerate(seconds)]
    found = ranking(*trials, objectives=("throughput",), batches=(1, 2, 4, 8), latency_limit=limit)
    assert found.too_late(Plan(engine="onnx"), [trial.batch for trial in trials]) == why


def test_what_does_not_run_is_not_tried_with_larger_batches(ranking, tried):
    found = ranking(tried("onnx", status=Status.CRASHED))
    assert found.too_late(Plan(engine="onnx"), [1]) == "it does not run with batch 1"


def test_who_was_near_the_winner_of_the_final_is_a_rival(ranking, tried, compared):
    winner, near, far = tried("litert", 1e-3), tried("onnx", 1.1e-3), tried("xla", 1.2e-3)
    in_final = {winner.name: 1e-3, near.name: (RIVAL.value - 0.03) * 1e-3, far.name: (RIVAL.value + 0.03) * 1e-3}

    def rivals(**question):
        found = ranking(winner, near, far, **question)
        found.final = compared(in_final)
        return [one.name for one in (winner, near, far) if found.is_rival(one.name, winner.name)]

    assert rivals() == [winner.name, near.name]
    assert rivals(objectives=("size",)) == [winner.name, near.name, far.name]  # a size is no matter of luck
    assert ranking(winner, far).is_rival(far.name, winner.name)  # there was no final


@pytest.fixture
def trials(tried):
    """A function from engines with their seconds to trials by name, and names by engine."""

    def trials(**seconds):
        made = [tried(engine, value) for engine, value in seconds.items()]
        return {trial.name: trial for trial in made}

    return trials


def named(*engines):
    return tuple(f"{engine}, batch 1" for engine in engines)


def times(**seconds):
    return {f"{engine}, batch 1": value for engine, value in seconds.items()}


def test_nothing_ran(asked, tried):
    assert winner_of({}, asked(), None, None) == (None, ())
    failed = tried("onnx", status=Status.CRASHED)
    assert winner_of({failed.name: failed}, asked(), None, None) == (None, ())


def test_before_the_final_the_best_look_wins(asked, trials):
    looked = trials(onnx=1.2e-3, litert=1.0e-3, graph=1.1e-3)
    assert winner_of(looked, asked(), None, None) == ("litert, batch 1", ())


def test_the_final_decides_whatever_the_looks_were(asked, trials, compared):
    looked = trials(onnx=1.0e-3, litert=1.2e-3, graph=0.5e-3)
    final = compared(times(onnx=1.2e-3, litert=1.0e-3))
    assert winner_of(looked, asked(), final, None) == ("litert, batch 1", ())


def test_both_rounds_count_alike(asked, trials, compared):
    """One was lucky once: on average the other is ahead."""
    looked = trials(onnx=1e-3, litert=1e-3, graph=1e-3)
    final = compared(times(onnx=0.97e-3, litert=1.0e-3, graph=2e-3))
    confirmation = compared(times(litert=0.90e-3, onnx=1.0e-3))
    assert winner_of(looked, asked(), final, confirmation)[0] == "litert, batch 1"
    confirmation = compared(times(litert=0.99e-3, onnx=1.0e-3))
    assert winner_of(looked, asked(), final, confirmation)[0] == "onnx, batch 1"


def test_equals_are_those_that_each_round_does_not_tell_apart(asked, trials, compared):
    looked = trials(onnx=1e-3, litert=1e-3, graph=1e-3, xla=1e-3)
    final = compared(times(onnx=1.000e-3, litert=1.002e-3, graph=1.05e-3, xla=1.001e-3))
    assert winner_of(looked, asked(), final, None) == (named("onnx")[0], named("litert", "xla"))
    confirmation = compared(times(onnx=1.0e-3, litert=1.002e-3, xla=1.05e-3))
    best, equals = winner_of(looked, asked(), final, confirmation)
    assert best == "onnx, batch 1"
    assert equals == named("litert", "xla")  # xla was slower once, and as fast once
    final = compared(times(onnx=1.0e-3, litert=1.002e-3, graph=1.05e-3, xla=1.05e-3))
    assert winner_of(looked, asked(), final, confirmation)[1] == named("litert")


def test_too_noisy_is_not_told_apart(asked, trials, compared):
    final = compared(times(onnx=1.0e-3, litert=1.02e-3), spread=0.1, rounds=10)
    best, equals = winner_of(trials(onnx=1.0, litert=1.0), asked(), final, None)
    assert {best, *equals} == set(named("onnx", "litert"))


@pytest.mark.parametrize(
    ("disturbed", "winner"),
    [
        (1.08e-3, "onnx"),  # as by neighbours on the same processor
        (2.08e-3, "litert"),  # as by threads that wake on one processor
    ],
)
def test_of_those_that_cannot_be_told_apart_the_best_in_both_ratios_wins(asked, trials, measured, disturbed, winner):
    """Most turns of one were disturbed, so that its median is higher, and its undisturbed calls are faster."""
    samples = {"onnx": [disturbed, disturbed, 1e-3, disturbed, disturbed, 1e-3, disturbed], "litert": [1.05e-3] * 7}
    taken = {f"{engine}, batch 1": times for engine, times in samples.items()}
    final = Comparison(
        measurements=tuple(measured(name, seconds) for name, seconds in taken.items()),
        ratios=(paired(*taken, *map(np.array, taken.values()), 0.01),),
        rounds=7,
        margin=0.01,
        stopped=Stop.TIME_LIMIT,
    )
    assert final.ratio(*taken).estimate > 1  # litert is ahead
    assert final.ratio(*taken).verdict is not Verdict.FASTER
    (other,) = samples.keys() - {winner}
    for confirmation in (None, final):
        assert winner_of(trials(onnx=1e-3, litert=1e-3), asked(), final, confirmation) == (
            f"{winner}, batch 1",
            named(other),
        )


@pytest.mark.parametrize(
    ("slower", "batch", "precision", "wins"),
    [
        (1.003, 1, "int8", True),
        (1.05, 1, "int8", False),  # told apart
        (1.003, 2, "int8", False),  # of another batch size
        (1.003, 1, "float32", False),  # changed otherwise, too
    ],
)
def test_of_equals_that_differ_in_the_fixed_batch_alone_the_fixed_one_wins(
    asked, tried, compared, slower, batch, precision, wins
):
    for others in ((), ("fold_batch_norm",)):
        fixing = {"transformations": (*others, "fixed_batch"), "batch": batch}
        made = [
            tried("onnx", precision="int8", transformations=others),
            tried(Plan(engine="onnx", precision=precision, **fixing), batch=batch),
            tried(Plan(engine="litert", precision="int8", **fixing), batch=batch),
        ]
        opened, fixed, other = (trial.name for trial in made)
        taken = compared({opened: 1e-3, fixed: slower * batch * 1e-3, other: 1.003e-3 * batch})
        final = per_example(taken, {trial.name: trial.batch for trial in made})
        question = asked(objectives=("throughput",))
        best, equals = winner_of({trial.name: trial for trial in made}, question, final, None)
        assert best == (fixed if wins else opened)
        assert ({best, *equals} >= {opened, fixed}) == (slower < 1.01)


def test_an_equal_that_was_not_measured_again_is_still_one(asked, trials, compared):
    """Only some of the finalists are confirmed."""
    looked = trials(onnx=1e-3, litert=1e-3, graph=1e-3, xla=1e-3)
    final = compared(times(onnx=1.000e-3, litert=1.001e-3, graph=1.002e-3, xla=1.2e-3))
    confirmation = compared(times(onnx=1.000e-3, litert=1.001e-3))
    assert winner_of(looked, asked(), final, confirmation) == (named("onnx")[0], named("graph", "litert"))


def test_a_finalist_that_failed_later_is_out(asked, trials, compared):
    looked = trials(onnx=1e-3, litert=1.1e-3)
    final = compared(times(onnx=1.0e-3, litert=1.1e-3))
    looked["onnx, batch 1"] = looked["onnx, batch 1"].model_copy(update={"status": Status.CRASHED})
    assert winner_of(looked, asked(), final, None) == ("litert, batch 1", ())


def test_the_latency_limit_is_kept_by_what_is_known_best(asked, trials, compared):
    looked = trials(onnx=1.0e-3, litert=1.9e-3, graph=3e-3)
    assert winner_of(looked, asked(latency_limit=0.5e-3), None, None) == (None, ())
    final = compared(times(onnx=2.1e-3, litert=2.2e-3, graph=1.9e-3))
    assert winner_of(looked, asked(latency_limit=2e-3), final, None) == ("graph, batch 1", ())
    limited = asked(latency_limit=2e-3, objectives=("size",))
    assert winner_of(looked, limited, final, None) == ("graph, batch 1", ())


def test_throughput_is_by_examples(asked, tried, compared):
    few, many = tried("onnx", 1e-3, batch=1), tried("onnx", 3e-3, batch=8)
    trials = {one.name: one for one in (few, many)}
    assert winner_of(trials, asked(objectives=("throughput",)), None, None)[0] == "onnx, batch 8"
    assert winner_of(trials, asked(), None, None)[0] == "onnx, batch 1"


@pytest.mark.parametrize(("objective", "near", "far"), [("size", 1009, 1011), ("memory", 1049, 1051)])
def test_those_of_nearly_the_same_size_are_decided_by_time(asked, tried, compared, objective, near, far):
    made = [tried(one, 1e-3, **{objective: value}) for one, value in [("onnx", 1000), ("litert", near), ("xla", far)]]
    trials = {one.name: one for one in made}
    question = asked(objectives=(objective,))
    final = compared(times(onnx=1.2e-3, litert=1.0e-3, xla=0.5e-3))
    assert winner_of(trials, question, final, None) == ("litert, batch 1", ())
    final = compared(times(onnx=1.0e-3, litert=1.0e-3, xla=0.5e-3))
    best, equals = winner_of(trials, question, final, None)
    assert {best, *equals} == set(named("onnx", "litert"))


def test_before_the_final_the_smallest_within_the_band_that_is_fastest(asked, tried):
    made = [tried("onnx", 2e-3, size=1000), tried("litert", 1e-3, size=1005), tried("xla", 1e-4, size=1020)]
    found = winner_of({one.name: one for one in made}, asked(objectives=("size",)), None, None)
    assert found == ("litert, batch 1", ())
