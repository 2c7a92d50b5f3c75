"""tfperf.measure.statistics against SciPy, against known answers, and against simulation."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tfperf.measure import statistics
from tfperf.measure.statistics import (
    EXACT_RANKS_LIMIT,
    WARM_UP_BATCH,
    Interval,
    autocorrelation_time,
    median_interval,
    paired_ratio,
    percentile,
    samples_needed,
    unpaired_ratio,
    warm_up_length,
)

timings = st.floats(min_value=1e-9, max_value=1e3)
lists_of_timings = st.lists(timings, min_size=1, max_size=60)
few_pairs = st.lists(st.tuples(timings, timings), min_size=1, max_size=15)  # too few to speak of their dependence


def ar1(generator: np.random.Generator, count: int, rho: float) -> np.ndarray:
    """A stationary Gaussian series in which neighbours correlate by rho."""
    steps = generator.normal(size=count) * math.sqrt(1 - rho * rho)
    series = np.empty(count)
    series[0] = generator.normal()
    for i in range(1, count):
        series[i] = rho * series[i - 1] + steps[i]
    return series


# ---------------------------------------------------------------- median_interval


@pytest.mark.parametrize("count", [6, 7, 9, 15])
@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_median_interval_is_scipys(count: int, confidence: float) -> None:
    # Under 16 samples nothing is widened, so the interval is the textbook's.
    samples = np.random.default_rng(count).lognormal(size=count)
    theirs = stats.quantile_test(samples, q=np.median(samples), p=0.5).confidence_interval(confidence)
    ours = median_interval(samples, confidence)
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), rel=1e-12)
    assert ours.estimate == np.median(samples)


@pytest.mark.parametrize("count", [16, 51, 100, 1001])
def test_median_interval_of_many_is_scipys_widened(count: int) -> None:
    samples = np.random.default_rng(count).lognormal(size=count)
    theirs = stats.quantile_test(samples, q=np.median(samples), p=0.5).confidence_interval(0.95)
    factor = math.sqrt(autocorrelation_time(samples))
    ours = median_interval(samples)
    assert ours.estimate - ours.low == pytest.approx((ours.estimate - theirs.low) * factor)
    assert ours.high - ours.estimate == pytest.approx((theirs.high - ours.estimate) * factor)


@pytest.mark.parametrize("count", range(6, 40))
def test_median_interval_uses_the_innermost_ranks_that_reach_the_confidence(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "autocorrelation_time", lambda samples: 1.0)
    ours = median_interval(np.arange(1.0, count + 1))  # each sample is its own rank
    rank = int(ours.low)
    assert ours.high == count + 1 - rank
    assert 2 * stats.binom.cdf(rank - 1, count, 0.5) <= 0.05 < 2 * stats.binom.cdf(rank, count, 0.5)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_median_interval_of_few_is_their_range(count: int) -> None:
    samples = np.arange(1.0, count + 1)
    assert median_interval(samples) == Interval(np.median(samples), 1.0, count)


@pytest.mark.parametrize("count", [10, 30, 200])
def test_median_interval_covers_independent_samples(count: int) -> None:
    generator = np.random.default_rng(0)
    intervals = [median_interval(generator.exponential(size=count)) for _ in range(600)]
    covered = np.mean([i.low <= math.log(2) <= i.high for i in intervals])
    assert covered >= 0.93  # 95 % is promised; 600 tries scatter by 0.9 %
    widths = [i.high - i.low for i in intervals]
    ideal = [2 * 1.96 / math.sqrt(count)] * 600  # of an exponential's median, for large counts
    assert np.median(widths) < 1.6 * np.median(ideal)  # an interval that holds everything is no use


@pytest.mark.parametrize("rho", [0.5, 0.8, 0.9])
def test_median_interval_covers_dependent_samples(rho: float) -> None:
    generator = np.random.default_rng(1)
    covered = [i.low <= 0 <= i.high for i in (median_interval(ar1(generator, 1000, rho)) for _ in range(300))]
    assert (
        np.mean(covered) >= 0.89  # taken as independent: 80 % at rho = 0.5, and 57 % at 0.8
    )  # 95 % is promised of independent ones; as if independent it is 75 % at rho = 0.5, and 35 % at 0.9


@given(samples=lists_of_timings, scale=st.sampled_from([2.0**-20, 0.5, 2.0, 1024.0]))
def test_median_interval_does_not_depend_on_the_unit(samples: list[float], scale: float) -> None:
    here, there = median_interval(samples), median_interval(np.array(samples) * scale)
    assert there == Interval(*(value * scale for value in here))  # powers of two: no rounding


@given(samples=lists_of_timings)
def test_median_interval_holds_its_median(samples: list[float]) -> None:
    interval = median_interval(samples)
    assert interval.low <= interval.estimate == np.median(samples) <= interval.high


def test_median_interval_of_a_duration_is_a_duration() -> None:
    # A speed that changes halfway: the widening must not lead below zero seconds.
    samples = np.repeat([1.0, 3.0], 100)
    assert median_interval(samples).low >= 0


def test_relative_half_width() -> None:
    assert Interval(2.0, 1.0, 5.0).relative_half_width == 1.0
    assert Interval(0.0, -1.0, 1.0).relative_half_width == math.inf


# ---------------------------------------------------------------- paired_ratio


@pytest.mark.parametrize("count", [8, 9, 12, 20, 30, 50])
@pytest.mark.parametrize("confidence", [0.95, 0.99])
def test_signed_rank_cutoff_is_scipys(count: int, confidence: float) -> None:
    cutoff = statistics._signed_rank_critical_value(count, confidence)

    def p_value(statistic: int) -> float:
        """The p value of Wilcoxon's exact test on differences whose negative ranks sum to `statistic`."""
        signs, left = np.ones(count), statistic
        for rank in range(count, 0, -1):
            if rank <= left:
                signs[rank - 1], left = -1, left - rank
        return float(stats.wilcoxon(signs * np.arange(1, count + 1), method="exact").pvalue)

    assert p_value(cutoff) <= 1 - confidence < p_value(cutoff + 1)


@pytest.mark.parametrize("count", range(1, 8))
def test_too_few_pairs_give_the_whole_range(count: int) -> None:
    assert statistics._signed_rank_critical_value(count, 0.99) is None
    last = count - 1
    interval = paired_ratio(1.1 ** np.arange(count), np.ones(count))
    assert interval == pytest.approx((1.1 ** (last / 2), 1.0, 1.1**last), rel=1e-12)


def test_eight_pairs_are_enough_for_99_percent() -> None:
    assert statistics._signed_rank_critical_value(8, 0.99) == 0


def test_paired_ratio_by_brute_force() -> None:
    generator = np.random.default_rng(2)
    a, b = generator.lognormal(size=(2, 12))
    logs = np.log(a / b)
    walsh = sorted((logs[i] + logs[j]) / 2 for i in range(12) for j in range(i, 12))
    # Just above walsh[k] lie k + 1 of the averages below; the first such ratio that the test accepts ends the interval.
    cutoff = next(k for k in range(60) if stats.wilcoxon(logs - walsh[k] - 1e-12, method="exact").pvalue > 0.01)
    ours = paired_ratio(a, b)
    assert ours.estimate == pytest.approx(math.exp(np.median(walsh)))
    # The interval is the set of ratios that the test does not reject: it ends where the p-value passes 1 %.
    assert ours.low == pytest.approx(math.exp(walsh[cutoff]), rel=1e-6)
    assert ours.high == pytest.approx(math.exp(walsh[-1 - cutoff]), rel=1e-6)


@pytest.mark.parametrize("confidence", [0.95, 0.99])
def test_exact_and_normal_ranks_meet(confidence: float) -> None:
    tail = (1 - confidence) / 2
    for count in range(EXACT_RANKS_LIMIT - 20, EXACT_RANKS_LIMIT + 21):
        exact, normal = statistics._exact_rank(count, tail), statistics._normal_rank(count, tail)
        # Of some 5000 ranks; the normal limit's tails are a little heavier here, hence on the safe side.
        assert -12 <= normal - exact <= 1


def test_paired_ratio_covers_the_true_ratio() -> None:
    generator = np.random.default_rng(3)
    covered = 0
    for _ in range(600):
        disturbance = generator.lognormal(0, 1, size=25)  # hits both members of a pair
        noise = generator.lognormal(0, 0.05, size=(2, 25))
        interval = paired_ratio(1.5 * disturbance * noise[0], disturbance * noise[1])
        covered += interval.low <= 1.5 <= interval.high
        assert interval.high / interval.low < 1.3  # the disturbance has cancelled
    assert covered >= 0.975 * 600  # 99 % is promised


def test_paired_ratio_covers_with_dependent_pairs() -> None:
    generator = np.random.default_rng(4)
    intervals = (paired_ratio(np.exp(0.1 * ar1(generator, 200, 0.5)), np.ones(200)) for _ in range(300))
    assert np.mean([i.low <= 1 <= i.high for i in intervals]) >= 0.96  # as if independent it is 88 %


@given(pairs=few_pairs)
def test_swapping_the_sides_inverts_the_ratio(pairs: list[tuple[float, float]]) -> None:
    a, b = np.array(pairs).T
    here, there = paired_ratio(a, b), paired_ratio(b, a)
    assert (here.estimate, here.low, here.high) == pytest.approx(
        (1 / there.estimate, 1 / there.high, 1 / there.low), rel=1e-9
    )


def test_swapping_the_sides_of_tied_pairs_inverts_the_ratio() -> None:
    # A clock with coarse steps makes ties. What lies at the median is neither above nor below it.
    a, b = np.ones(40), np.ones(40)
    a[:12] = 2.0
    here, there = paired_ratio(a, b), paired_ratio(b, a)
    assert here == pytest.approx((1 / there.estimate, 1 / there.high, 1 / there.low))


@given(pairs=few_pairs, scale=st.sampled_from([1e-6, 0.3, 7.0]))  # of many, rounding may untie ratios that are equal
def test_paired_ratio_does_not_depend_on_the_unit(pairs: list[tuple[float, float]], scale: float) -> None:
    a, b = np.array(pairs).T
    assert paired_ratio(a * scale, b * scale) == pytest.approx(paired_ratio(a, b), rel=1e-6)


@given(pairs=few_pairs, seed=st.integers(0, 100))
def test_the_order_of_few_pairs_does_not_matter(pairs: list[tuple[float, float]], seed: int) -> None:
    a, b = np.array(pairs).T
    order = np.random.default_rng(seed).permutation(len(a))
    assert paired_ratio(a[order], b[order]) == paired_ratio(a, b)


@given(samples=lists_of_timings)
def test_a_timing_by_itself_is_exactly_one(samples: list[float]) -> None:
    assert paired_ratio(samples, samples) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize(("a", "b"), [([1.0], [1.0, 2.0]), ([], []), ([0.0], [1.0]), ([1.0], [-1.0]), ([[1.0]], [1.0])])
def test_paired_ratio_refuses(a: list, b: list) -> None:
    with pytest.raises(ValueError, match="expected"):
        paired_ratio(a, b)


# ---------------------------------------------------------------- unpaired_ratio


def test_unpaired_ratio_of_runs_is_scipys_welch() -> None:
    generator = np.random.default_rng(5)
    a = [generator.lognormal(0.1, 0.2, size=50) for _ in range(4)]
    b = [generator.lognormal(0.0, 0.4, size=50) for _ in range(7)]
    logs_a, logs_b = ([math.log(np.median(run)) for run in side] for side in (a, b))
    theirs = stats.ttest_ind(logs_a, logs_b, equal_var=False).confidence_interval(0.99)
    ours = unpaired_ratio(a, b)
    assert ours == pytest.approx(
        (math.exp(np.mean(logs_a) - np.mean(logs_b)), math.exp(theirs.low), math.exp(theirs.high))
    )


def test_unpaired_ratio_of_single_runs_is_scipys_welch_of_their_batches() -> None:
    generator = np.random.default_rng(6)
    a, b = generator.lognormal(size=100), generator.lognormal(size=60)
    logs_a, logs_b = (np.log(np.median(run.reshape(10, -1), axis=1)) for run in (a, b))
    theirs = stats.ttest_ind(logs_a, logs_b, equal_var=False).confidence_interval(0.95)
    ours = unpaired_ratio([a], [b], confidence=0.95)
    assert (ours.low, ours.high) == pytest.approx((math.exp(theirs.low), math.exp(theirs.high)))


def test_what_differs_between_runs_is_measured_with_three_of_them_and_assumed_with_fewer() -> None:
    run = np.full(30, 1.0)
    normal = stats.norm.ppf(0.995)
    assert unpaired_ratio([run] * 3, [run] * 3, between_runs=0.01) == (1.0, 1.0, 1.0)
    for runs in (1, 2):
        interval = unpaired_ratio([run] * runs, [run] * runs, between_runs=0.01)
        assert math.log(interval.high) == pytest.approx(normal * 0.01 * math.sqrt(2 / runs))
    one_side = unpaired_ratio([run], [run] * 3, between_runs=0.01)
    assert math.log(one_side.high) == pytest.approx(normal * 0.01)


def test_one_number_a_side_says_nothing_of_the_noise() -> None:
    assert unpaired_ratio([np.array([2.0])], [np.array([1.0])]) == (2.0, 0.0, math.inf)


def test_unpaired_ratio_covers_the_true_ratio() -> None:
    generator = np.random.default_rng(7)
    covered = 0
    for _ in range(500):
        a, b = generator.lognormal(math.log(1.2), 0.3, size=90), generator.lognormal(0, 0.3, size=90)
        interval = unpaired_ratio([a], [b])
        covered += interval.low <= 1.2 <= interval.high
    assert covered >= 0.97 * 500


@given(scale=st.sampled_from([1e-6, 3.0]), seed=st.integers(0, 20))
def test_unpaired_ratio_knows_no_unit_and_inverts(scale: float, seed: int) -> None:
    a, b = np.random.default_rng(seed).lognormal(size=(2, 40))
    here, there = unpaired_ratio([a], [b]), unpaired_ratio([b * scale], [a * scale])
    assert here == pytest.approx((1 / there.estimate, 1 / there.high, 1 / there.low))


@pytest.mark.parametrize("runs", [[], [np.array([])], [np.array([0.0])], [np.array([math.nan])]])
def test_unpaired_ratio_refuses(runs: list) -> None:
    with pytest.raises(ValueError, match="expected"):
        unpaired_ratio(runs, [np.ones(5)])


# ---------------------------------------------------------------- autocorrelation_time


@pytest.mark.parametrize("rho", [0.0, 0.3, 0.6, 0.9])
def test_autocorrelation_time_of_ar1(rho: float) -> None:
    # Whether each of two Gaussians with correlation r is above its median correlates by (2/pi) asin(r).
    known = 1 + 2 * sum(2 / math.pi * math.asin(rho**k) for k in range(1, 400))
    generator = np.random.default_rng(8)
    times = [autocorrelation_time(ar1(generator, 4000, rho)) for _ in range(40)]
    assert np.mean(times) == pytest.approx(known, rel=0.12)


def test_autocorrelation_time_is_not_moved_by_spikes() -> None:
    generator = np.random.default_rng(9)
    samples = generator.normal(10, 1, size=2000)
    before = autocorrelation_time(samples)
    spiked = samples.copy()
    spiked[samples > 12.5] *= 1e6  # they were above the median before
    assert autocorrelation_time(spiked) == before


@pytest.mark.parametrize("samples", [np.ones(100), np.arange(15.0), [5.0]])
def test_autocorrelation_time_is_one_where_nothing_can_be_seen(samples: np.ndarray) -> None:
    assert autocorrelation_time(samples) == 1.0


def test_autocorrelation_time_of_alternating_samples_is_not_below_one() -> None:
    assert autocorrelation_time(np.tile([1.0, 2.0], 100)) == 1.0


def test_autocorrelation_time_sees_two_halves() -> None:
    assert autocorrelation_time(np.repeat([1.0, 2.0], 100)) > 40


# ---------------------------------------------------------------- warm_up_length


def noisy(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).lognormal(0, 0.02, size=count)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("length", [20, 30, 60])
def test_a_step_is_found_and_little_more(length: int, seed: int) -> None:
    samples = noisy(200, seed)
    samples[:length] *= 1.5
    assert length <= warm_up_length(samples) <= length + 30


@pytest.mark.parametrize("seed", range(10))
def test_an_exponential_warm_up_is_dropped_until_it_is_small(seed: int) -> None:
    samples = noisy(300, seed) * (1 + 2 * np.exp(-np.arange(300) / 10))
    length = warm_up_length(samples)
    assert 2 * math.exp(-length / 10) < 0.1
    assert length <= 100


@pytest.mark.parametrize("seed", range(10))
def test_a_warm_up_in_which_the_work_is_faster_is_found_too(seed: int) -> None:
    samples = noisy(200, seed)
    samples[:40] *= 0.7  # a processor that throttles once it is warm
    assert 40 <= warm_up_length(samples) <= 55


@pytest.mark.parametrize("seed", range(10))
def test_spikes_are_no_warm_up(seed: int) -> None:
    samples = noisy(200, seed)
    samples[np.random.default_rng(seed).integers(0, 200, size=8)] *= 30
    samples[2] *= 1000
    assert warm_up_length(samples) <= WARM_UP_BATCH


def test_drift_is_no_warm_up_beyond_one_half() -> None:
    assert warm_up_length(np.linspace(2.0, 1.0, 200)) <= 100


@pytest.mark.parametrize("samples", [np.ones(500), np.ones(19), [1.0]])
def test_constant_or_few_samples_have_no_warm_up(samples: np.ndarray) -> None:
    assert warm_up_length(samples) == 0


def test_a_cut_that_changes_nothing_is_not_made() -> None:
    samples = np.full(200, 1.0)
    samples[:40] = 1.009  # under 1 %
    assert warm_up_length(samples) == 0
    samples[:40] = 1.011
    assert warm_up_length(samples) == 40


@pytest.mark.parametrize("length", [50, 200])
def test_recorded_noise_seldom_passes_for_a_warm_up(quiet_trace: str, length: int, fake) -> None:
    factors = fake.load_trace(quiet_trace)
    runs = factors[: len(factors) // length * length].reshape(-1, length)
    lost = [warm_up_length(run) / length for run in runs[:400]]
    assert np.mean(lost) < 0.2  # samples lost for nothing; the trace has real shifts too


# ---------------------------------------------------------------- percentiles


@pytest.mark.parametrize(("percent", "count"), [(99, 662), (1, 662), (95, 130), (90, 64), (50, 11)])
def test_samples_needed_known_answers(percent: float, count: int) -> None:
    assert samples_needed(percent) == count


@pytest.mark.parametrize("percent", [50, 75, 90, 99, 99.9])
def test_samples_needed_is_the_fewest(percent: float) -> None:
    # The share of a population between the least and the largest of n samples is Beta(n - 1, 2): Wilks.
    def confidence(count: int) -> float:
        return float(stats.beta.sf(percent / 100, count - 1, 2))

    count = samples_needed(percent)
    assert confidence(count) >= 0.99 > confidence(count - 1)


def test_percentile_is_numpys() -> None:
    samples = np.random.default_rng(10).lognormal(size=700)
    assert percentile(samples, 99) == np.percentile(samples, 99)


def test_percentile_is_refused_below_the_samples_needed() -> None:
    assert percentile(np.arange(662.0), 99) == pytest.approx(0.99 * 661)
    with pytest.raises(ValueError, match=r"at least 662 samples for the percentile 99\. Received: 661"):
        percentile(np.arange(661.0), 99)


@pytest.mark.parametrize("percent", [0, 100, -1, 101, math.nan])
def test_there_are_no_such_percentiles(percent: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 100"):
        samples_needed(percent)


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize("function", [median_interval, autocorrelation_time, warm_up_length])
@pytest.mark.parametrize("samples", [[], [[1.0, 2.0]], [1.0, math.nan], [math.inf], 1.0])
def test_what_is_no_series_of_samples_is_refused(function, samples) -> None:
    with pytest.raises(ValueError, match="expected a non-empty 1-D array of finite samples"):
        function(samples)


@pytest.mark.parametrize("function", [median_interval, lambda x, c: paired_ratio(x, x, c)], ids=["median", "paired"])
def test_there_are_no_such_confidences(function) -> None:
    for confidence in (0.0, 1.0, 1.5, -0.5, math.nan):
        with pytest.raises(ValueError, match="confidence"):
            function(np.arange(1.0, 30.0), confidence)
