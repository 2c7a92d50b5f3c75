"""Two result files against each other: known answers."""

import math

import numpy as np
import pytest

from tfperf.errors import MeasurementError
from tfperf.measure.regression import BETWEEN_RUNS, THRESHOLD, RegressionVerdict, TimeChange, changes_between, overall
from tfperf.measure.results import Result
from tfperf.measure.statistics import Interval


@pytest.fixture
def make_result(make_measurement, environment):
    """A result with runs of given names; each run has 100 samples around its centre."""

    def make(runs: list[tuple[str, float]], noise: float = 0.005, seed: int = 0, **fields) -> Result:
        generator = np.random.default_rng(seed)
        measurements = tuple(
            make_measurement(centre * generator.lognormal(0, noise, size=100), name=name, **fields)
            for name, centre in runs
        )
        return Result(name="recipe", environment=environment, measurements=measurements)

    return make


def outcome(before: Result, after: Result, **settings: float) -> RegressionVerdict:
    return overall(changes_between(before, after, **settings))


def test_a_file_against_itself_is_no_regression(make_result) -> None:
    result = make_result([("eager", 0.002), ("graph", 0.001)])
    changes = changes_between(result, result)
    assert [(c.name, c.seen.estimate, c.verdict) for c in changes] == [
        ("eager", 1.0, RegressionVerdict.NO_REGRESSION),
        ("graph", 1.0, RegressionVerdict.NO_REGRESSION),
    ]


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (0.5, RegressionVerdict.NO_REGRESSION),
        (0.9, RegressionVerdict.NO_REGRESSION),
        (1.0, RegressionVerdict.NO_REGRESSION),
        (1.02, RegressionVerdict.TOO_NOISY),
        (1.1, RegressionVerdict.REGRESSION),
        (3.0, RegressionVerdict.REGRESSION),
    ],
)
def test_known_changes(make_result, after: float, expected: RegressionVerdict) -> None:
    assert outcome(make_result([("w", 1.0)]), make_result([("w", after)], seed=1)) is expected


def test_the_ratio_is_after_by_before(make_result) -> None:
    (change,) = changes_between(make_result([("w", 1.0)]), make_result([("w", 1.5)], seed=1))
    assert change.seen.estimate == pytest.approx(1.5, rel=0.01)
    assert change.seen.low < 1.5 < change.seen.high
    assert change.allowed.low < change.seen.low < change.seen.high < change.allowed.high


def test_the_threshold_is_an_argument(make_result) -> None:
    before, after = make_result([("w", 1.0)]), make_result([("w", 1.1)], seed=1)
    assert outcome(before, after, threshold=0.2) is RegressionVerdict.NO_REGRESSION
    assert outcome(before, after, threshold=0.02) is RegressionVerdict.REGRESSION
    assert outcome(before, after) is outcome(before, after, threshold=THRESHOLD)


def test_noise_gives_no_verdict(make_result) -> None:
    before, after = make_result([("w", 1.0)], noise=0.5), make_result([("w", 1.05)], noise=0.5, seed=1)
    assert outcome(before, after) is RegressionVerdict.TOO_NOISY


def test_one_run_cannot_see_what_differs_between_runs_and_three_can(make_result) -> None:
    # 4 % slower: within reach of two processes that differ, but not of three and three that agree.
    assert outcome(make_result([("w", 1.0)]), make_result([("w", 1.04)], seed=1)) is RegressionVerdict.TOO_NOISY
    three = outcome(make_result([("w", 1.0)] * 3), make_result([("w", 1.04)] * 3, seed=1))
    assert three is RegressionVerdict.REGRESSION


def test_three_runs_that_disagree_are_believed(make_result) -> None:
    before = make_result([("w", 1.0), ("w", 1.1), ("w", 0.9)])
    after = make_result([("w", 1.1), ("w", 1.2), ("w", 1.0)], seed=1)
    assert outcome(before, after) is RegressionVerdict.TOO_NOISY


def test_false_alarms_between_runs_that_differ_by_as_much_as_is_assumed(make_result) -> None:
    generator = np.random.default_rng(0)
    outcomes = []
    for attempt in range(150):
        centres = np.exp(generator.normal(0, BETWEEN_RUNS, size=2))
        before = make_result([("w", centres[0])], seed=2 * attempt)
        after = make_result([("w", centres[1])], seed=2 * attempt + 1)
        outcomes.append(outcome(before, after))
    assert outcomes.count(RegressionVerdict.REGRESSION) <= 3


def test_only_common_names_count(make_result) -> None:
    before = make_result([("same", 1.0), ("gone", 1.0)])
    after = make_result([("new", 9.0), ("same", 1.0)], seed=1)
    assert [change.name for change in changes_between(before, after)] == ["same"]


def test_no_name_in_common(make_result) -> None:
    with pytest.raises(MeasurementError, match="before has 'a', after has 'b'") as caught:
        changes_between(make_result([("a", 1.0)]), make_result([("b", 1.0)]))
    assert "\n" not in str(caught.value)
    with pytest.raises(MeasurementError, match="after has none"):
        changes_between(make_result([("a", 1.0)]), make_result([]))


def test_one_sample_a_side_is_too_noisy(make_measurement, environment) -> None:
    def one(seconds: float) -> Result:
        return Result(name="r", environment=environment, measurements=(make_measurement([seconds], name="w"),))

    assert outcome(one(1.0), one(5.0)) is RegressionVerdict.TOO_NOISY


def test_the_worst_outcome_is_the_whole(make_result) -> None:
    def change(low: float, high: float) -> TimeChange:
        interval = Interval(math.sqrt(low * high), low, high)
        return TimeChange("w", interval, interval, 0.02)

    good, unclear, bad = change(0.99, 1.01), change(0.9, 1.1), change(1.1, 1.2)
    assert overall([good, good]) is RegressionVerdict.NO_REGRESSION
    assert overall([good, unclear]) is RegressionVerdict.TOO_NOISY
    assert overall([unclear, bad, good]) is RegressionVerdict.REGRESSION
