"""tfperf.measure.comparison: the ratio of a pair, and what it is called."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfperf.measure.comparison import Ratio, Verdict, judge, paired
from tfperf.measure.statistics import Interval
from tfperf.measure.words import format_ratio


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.995, 1.005, Verdict.NO_DIFFERENCE),
        (1 / 1.01, 1.01, Verdict.NO_DIFFERENCE),
        (1.001, 1.009, Verdict.NO_DIFFERENCE),  # a real difference, smaller than what counts as one
        (1.001, 1.02, Verdict.FASTER),
        (0.9, 0.999, Verdict.SLOWER),
        (0.9, 1.0, Verdict.TOO_NOISY),
        (0.98, 1.02, Verdict.TOO_NOISY),
        (1.0, 1.02, Verdict.TOO_NOISY),
    ],
)
def test_judge(low: float, high: float, verdict: Verdict) -> None:
    assert judge(Interval((low + high) / 2, low, high), 0.01) is verdict


@given(ends=st.tuples(st.floats(0.5, 2.0), st.floats(0.5, 2.0)), margin=st.floats(0.001, 0.2))
def test_a_verdict_changes_over_with_its_sides(ends: tuple[float, float], margin: float) -> None:
    low, high = sorted(ends)
    interval = Interval(math.sqrt(low * high), low, high)
    here = judge(interval, margin)
    there = judge(Interval(1 / interval.estimate, 1 / high, 1 / low), margin * (1 + 1e-12))
    opposite = {Verdict.FASTER: Verdict.SLOWER, Verdict.SLOWER: Verdict.FASTER}
    # At the very edge of 1 the rounding of 1/x may decide; nowhere else.
    assert there is opposite.get(here, here) or min(abs(low - 1), abs(high - 1)) < 1e-12


def test_inverting_a_ratio_twice_gives_it_back() -> None:
    ratio = Ratio(baseline="a", candidate="b", estimate=2.0, low=1.6, high=2.5, verdict=Verdict.FASTER)
    assert ratio.inverted().inverted() == ratio
    assert str(ratio.inverted()) == f"a against b: slower, {format_ratio(Interval(0.5, 0.4, 0.625))}"


def test_seven_pairs_give_no_verdict_and_eight_do() -> None:
    fast, slow = np.ones(8), np.full(8, 2.0)
    assert paired("slow", "fast", slow[:7], fast[:7], 0.01).verdict is Verdict.TOO_FEW
    assert paired("slow", "fast", slow, fast, 0.01).verdict is Verdict.FASTER


def test_the_ratio_is_that_of_medians_not_of_means() -> None:
    fast, slow = np.ones(21), np.full(21, 2.0)
    fast[3], slow[7] = 1000.0, 500.0
    assert paired("slow", "fast", slow, fast, 0.01).estimate == 2.0
