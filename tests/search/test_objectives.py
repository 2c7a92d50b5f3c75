"""What better means."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfperf.measure import Verdict
from tfperf.search.objectives import cost, costs_in, pareto_front, per_example, within_limits
from tfperf.search.question import OBJECTIVES
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
