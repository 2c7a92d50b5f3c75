"""What a change of the time says of a class, from ratios made up."""

import pytest

from tfperf.explaining.verdicts import intervene, judged, verdicts
from tfperf.hardware.kernels.roofline import Bound
from tfperf.measure import Ratio, Verdict


def ratio(faster):
    return Ratio(
        baseline="original", candidate="changed", estimate=faster, low=faster * 0.9, high=faster * 1.1,
        verdict=Verdict.FASTER if faster > 1 else Verdict.SLOWER,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("faster", "expected", "agrees"),
    [
        (2.0, 0.5, True),
        (1.5, 0.5, True),  # more than half the way on a logarithmic scale
        (1.3, 0.5, False),
        (0.5, 0.5, False),  # the other way
        (0.5, 2.0, True),
        (1.0, 1.0, True),
        (1.1, 0.95, True),
        (2.0, 1.0, False),
        (10.0, 0.2, True),  # further than expected
    ],
)
def test_the_time_must_move_as_the_class_says(faster, expected, agrees):
    found = judged("half the work", Bound.COMPUTE, ratio(faster), expected)
    assert found.agrees is agrees
    assert found.words.endswith("The verdict holds." if agrees else "The verdict FAILS.")
    assert f"{1 / faster:.2f} times the time" in found.words
    assert "compute-bound" in found.words


@pytest.mark.parametrize("expected", [0.0, -1.0, float("inf"), float("nan")])
def test_nothing_can_be_expected_of_that(expected):
    with pytest.raises(ValueError, match="expected a ratio of times above 0"):
        judged("nothing", Bound.COMPUTE, ratio(2.0), expected)


def test_both_are_timed_side_by_side():
    calls = []
    found = intervene(
        "half", Bound.OVERHEAD, lambda: calls.append("original"), lambda: calls.append("changed"), 1.0, time_limit=0.3
    )
    assert {"original", "changed"} == set(calls)
    assert (found.ratio.baseline, found.ratio.candidate) == ("original", "changed")


def test_the_words_have_their_numbers(explanation, explained):
    found = explained()
    told = list(verdicts(found, explanation().roofs))
    assert told[0] == (
        "graph: 100 us a call (90 us predicted), overhead-bound: it waits for calls and the start of kernels, not for "
        "their work. Compute 5%, bandwidth 2%, overhead 93%; 90 us pass outside its 3 kernels."
    )
    assert told[1] == (
        "dense: 80% of the kernels' time, compute-bound: 2 FLOPs for each byte, 0.5 GFLOP/s and 0.25 GB/s, "
        "0% of the float32 peak"
    )
    assert "norm" in told[2]
