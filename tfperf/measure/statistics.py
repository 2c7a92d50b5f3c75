"""What can honestly be said of timings: intervals, ratios, warm-up, percentiles.

Timings are not a textbook sample. They are skewed, have spikes, drift, and follow one another with
memory. So everything here rests on medians and ranks, and widens its intervals when neighbouring
samples resemble each other. All functions are pure: arrays of seconds in, plain numbers out.
"""

import functools
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

__all__ = [
    "Interval",
    "autocorrelation_time",
    "median_interval",
    "paired_ratio",
    "percentile",
    "samples_needed",
    "unpaired_ratio",
    "warm_up_length",
]

EXACT_RANKS_LIMIT = 100
"""Up to this many pairs the signed-rank distribution is computed exactly, above it by its normal limit."""

WARM_UP_BATCH = 5
"""Samples per batch in the search for the end of the warm-up (the 5 of MSER-5)."""

WARM_UP_DIFFERENCE = 0.01
"""The start of a run is called warm-up only where its median differs from the rest by more than this share."""

WARM_UP_SIDE = 2 / 3
"""Share of the start that must lie on one side of the rest's median; noise alone puts half on each."""

PERCENTILE_CONFIDENCE = 0.99
"""How sure the samples must be to span the share of all calls that a percentile speaks of."""


class Interval(NamedTuple):
    """An estimate with the interval that holds the true value at the stated confidence."""

    estimate: float
    low: float
    high: float

    @property
    def relative_half_width(self) -> float:
        """Half the interval's width as a share of the estimate, without unit."""
        return (self.high - self.low) / (2 * abs(self.estimate)) if self.estimate else math.inf


def median_interval(samples: ArrayLike, confidence: float = 0.95) -> Interval:
    """Median with a distribution-free confidence interval.

    The interval is between two order statistics chosen by the binomial distribution, widened by the
    square root of the autocorrelation time. Under 6 samples no such interval reaches 95 %; then it
    is the whole range.

    Args:
        samples: shape (n,), n >= 1, in any unit, in the order they were taken.
        confidence: between 0 and 1.

    Source: David and Nagaraja, Order Statistics, 3rd edition, section 7.1.
    """
    _check_confidence(confidence)
    x = _as_samples(samples)
    ordered = np.sort(x)
    n = len(x)
    # The largest rank k with P(Binomial(n, 1/2) < k) <= (1 - confidence) / 2.
    tail = (1 - confidence) / 2
    ranks = np.arange(n // 2 + 1)
    below = special.bdtr(ranks, n, 0.5)  # P(Binomial <= rank)
    k = int(np.searchsorted(below, tail, side="right"))
    low, high = (ordered[k - 1], ordered[n - k]) if k >= 1 else (ordered[0], ordered[-1])
    return _widened(float(np.median(x)), (float(low), float(high)), (float(ordered[0]), float(ordered[-1])), x)


def paired_ratio(numerator: ArrayLike, denominator: ArrayLike, confidence: float = 0.99) -> Interval:
    """Ratio of two timings taken in pairs, side by side, with its confidence interval.

    The Hodges-Lehmann estimate on the logarithms of the ratios of each pair: what disturbs both
    members of a pair cancels, a spike in one of them counts as one rank. The interval inverts
    Wilcoxon's signed-rank test and is widened by the square root of the autocorrelation time.
    Too few pairs for the confidence (under 8 for 99 %) give the whole range of the ratios.

    Args:
        numerator, denominator: shape (n,), n >= 1, positive seconds; element i of both is one pair.
        confidence: between 0 and 1.

    Source: Hollander, Wolfe and Chicken, Nonparametric Statistical Methods, 3rd edition, section 3.3.
    """
    _check_confidence(confidence)
    a, b = _as_timings(numerator), _as_timings(denominator)
    if len(a) != len(b):
        raise ValueError(f"expected as many numerators as denominators. Received: {len(a)} and {len(b)}")
    logs = np.log(a) - np.log(b)
    n = len(logs)
    averages = (
        np.concatenate([logs[first] + logs[first:] for first in range(n)]) / 2
    )  # Walsh's: of each two, and itself
    k = _signed_rank_critical_value(n, confidence) or 0
    ranks = np.partition(averages, (k, len(averages) - 1 - k))
    low, high = ranks[k], ranks[-1 - k]
    ends = (float(averages.min()), float(averages.max()))
    interval = _widened(float(np.median(averages)), (float(low), float(high)), ends, logs)
    return Interval(*(math.exp(value) for value in interval))


def unpaired_ratio(
    numerator: list[NDArray[np.float64]],
    denominator: list[NDArray[np.float64]],
    confidence: float = 0.99,
    between_runs: float = 0.0,
) -> Interval:
    """Ratio of the medians of two timings taken apart, in different runs, with its confidence interval.

    Welch's interval on the logarithms of medians. Three or more runs on a side: the medians of the
    runs, so that what differs from process to process is in the interval. Fewer: the medians of
    consecutive batches, so that slow drift within the run is in it, and `between_runs` stands for
    what cannot be seen in one run.

    Args:
        numerator, denominator: one array of positive seconds, shape (n,), for each run.
        confidence: between 0 and 1.
        between_runs: standard deviation from run to run, as a share of the median.

    Source: Welch, Biometrika 34 (1947); batch means: Law, Simulation Modeling and Analysis, section 9.5.
    """
    _check_confidence(confidence)
    units_a, extra_a = _log_median_units(numerator, between_runs)
    units_b, extra_b = _log_median_units(denominator, between_runs)
    estimate = float(np.mean(units_a) - np.mean(units_b))
    if min(len(units_a), len(units_b)) < 2:
        return Interval(math.exp(estimate), 0.0, math.inf)  # one number a side says nothing of its noise
    variance_a = float(np.var(units_a, ddof=1)) / len(units_a)
    variance_b = float(np.var(units_b, ddof=1)) / len(units_b)
    seen = variance_a + variance_b
    freedom = (
        seen**2 / (variance_a**2 / (len(units_a) - 1) + variance_b**2 / (len(units_b) - 1))
        if seen > 0
        else len(units_a) + len(units_b) - 2
    )
    student = float(special.stdtrit(freedom, (1 + confidence) / 2))
    normal = float(special.ndtri((1 + confidence) / 2))
    half = math.hypot(student * math.sqrt(seen), normal * math.hypot(extra_a, extra_b))
    return Interval(math.exp(estimate), math.exp(estimate - half), math.exp(estimate + half))


def autocorrelation_time(samples: ArrayLike) -> float:
    """How many neighbouring samples say as much as one independent sample; at least 1.

    Computed on whether each sample lies above the median, which is what decides how far the median
    can be off, and which no spike can dominate. The sum over lags is cut where noise takes over
    (Sokal's window).

    Args:
        samples: shape (n,), in the order they were taken. Under 16 samples it is 1: there is nothing to see.

    Source: Sokal, Monte Carlo Methods in Statistical Mechanics (1996), section 3.
    """
    x = _as_samples(samples)
    n = len(x)
    if n < 16:
        return 1.0
    side = np.sign(x - np.median(x))  # -1, 0 or 1: ties with the median take no side
    centred = side - side.mean()
    if not centred.any():
        return 1.0
    spectrum = np.fft.rfft(centred, 2 * n)
    covariance = np.fft.irfft(spectrum * np.conj(spectrum))[: n // 2]
    correlation = covariance / covariance[0]
    times = 2 * np.cumsum(correlation) - 1  # times[k]: the sum up to lag k, both sides
    window = np.arange(len(times)) >= 5 * times
    cut = int(np.argmax(window)) if window.any() else len(times) - 1
    return max(1.0, float(times[cut]))


def warm_up_length(samples: ArrayLike) -> int:
    """How many samples at the start belong to the warm-up; 0 when the start is like the rest.

    The marginal standard error rule on medians of batches of 5: the cut after which the remaining
    batches pin down their centre best. At most half is cut. The cut is made only where the medians of
    the two parts differ by more than 1 %, and two thirds of the start lie on one side of the rest.

    Args:
        samples: shape (n,), in the order they were taken.

    Source: White, Cobb and Spratt, A comparison of five steady-state truncation heuristics, WSC 2000.
    """
    x = _as_samples(samples)
    batches = len(x) // WARM_UP_BATCH
    if batches < 4:
        return 0
    medians = np.median(x[: batches * WARM_UP_BATCH].reshape(batches, WARM_UP_BATCH), axis=1)
    centre = np.median(medians)
    spread = np.median(np.abs(medians - centre))
    if spread > 0:  # a spike must not pass for a warm-up
        medians = np.clip(medians, centre - 10 * spread, centre + 10 * spread)
    cuts = range(batches // 2 + 1)
    errors = [float(np.var(medians[cut:])) / (batches - cut) for cut in cuts]
    length = int(np.argmin(errors)) * WARM_UP_BATCH
    if length == 0:
        return 0
    start, settled = x[:length], float(np.median(x[length:]))
    slower = float(np.mean(start > settled))
    one_sided = max(slower, 1 - slower) >= WARM_UP_SIDE
    return length if one_sided and abs(np.median(start) / settled - 1) > WARM_UP_DIFFERENCE else 0


def samples_needed(percent: float) -> int:
    """Fewest samples that may speak of a percentile.

    So many that, with 99 % confidence, the samples span at least that share of all calls: 662 for
    p99, 130 for p95, 64 for p90.

    Args:
        percent: between 0 and 100, both excluded; 1 and 99 need the same.

    Source: Wilks, Determination of sample sizes for setting tolerance limits (1941).
    """
    if not 0 < percent < 100:
        raise ValueError(f"expected a percentile between 0 and 100, both excluded. Received: {percent}")
    share = max(percent, 100 - percent) / 100

    def confidence(n: int) -> float:
        return 1 - n * share ** (n - 1) + (n - 1) * share**n

    high = 2
    while confidence(high) < PERCENTILE_CONFIDENCE:
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if confidence(middle) >= PERCENTILE_CONFIDENCE else (middle, high)
    return max(high, 2)


def percentile(samples: ArrayLike, percent: float) -> float:
    """The value that `percent` of the samples do not exceed, by linear interpolation.

    Args:
        samples: shape (n,), n >= `samples_needed(percent)`.
        percent: between 0 and 100, both excluded.

    Raises:
        ValueError: fewer samples than can speak of this percentile.
    """
    x = _as_samples(samples)
    needed = samples_needed(percent)
    if len(x) < needed:
        raise ValueError(f"expected at least {needed} samples for the percentile {percent}. Received: {len(x)}")
    return float(np.percentile(x, percent))


def _as_samples(samples: ArrayLike) -> NDArray[np.float64]:
    """The samples as a flat float array, refused when empty or not finite."""
    x = np.asarray(samples, dtype=np.float64)
    if x.ndim != 1 or not len(x) or not np.isfinite(x).all():
        raise ValueError(f"expected a non-empty 1-D array of finite samples. Received: shape {x.shape}")
    return x


def _as_timings(samples: ArrayLike) -> NDArray[np.float64]:
    """The samples as `_as_samples`, refused also where one is not positive."""
    x = _as_samples(samples)
    if (x <= 0).any():
        raise ValueError(f"expected timings above 0. Received: {x.min()}")
    return x


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ValueError(f"expected a confidence between 0 and 1, both excluded. Received: confidence={confidence}")


def _widened(
    estimate: float, interval: tuple[float, float], ends: tuple[float, float], series: NDArray[np.float64]
) -> Interval:
    """The interval as wide as the samples' dependence on each other makes it, but not beyond the samples' ends."""
    factor = math.sqrt(autocorrelation_time(series))
    low, high = (estimate + (end - estimate) * factor for end in interval)
    return Interval(estimate, max(low, ends[0]), min(high, ends[1]))


def _signed_rank_critical_value(n: int, confidence: float) -> int | None:
    """The rank k such that Walsh averages k and -1-k (from 0) bound the interval; None where n is too small."""
    tail = (1 - confidence) / 2
    return _normal_rank(n, tail) if n > EXACT_RANKS_LIMIT else _exact_rank(n, tail)


def _normal_rank(n: int, tail: float) -> int:
    mean, deviation = n * (n + 1) / 4, math.sqrt(n * (n + 1) * (2 * n + 1) / 24)
    return math.floor(mean + float(special.ndtri(tail)) * deviation - 0.5)


@functools.cache
def _exact_rank(n: int, tail: float) -> int | None:
    """Each rank 1..n belongs to a positive or a negative difference with probability 1/2."""
    probabilities = np.ones(1)
    for rank in range(1, n + 1):
        without, with_rank = np.pad(probabilities, (0, rank)), np.pad(probabilities, (rank, 0))
        probabilities = (without + with_rank) / 2
    within_tail = int(np.searchsorted(np.cumsum(probabilities), tail, side="right"))
    return within_tail - 1 if within_tail >= 1 else None


def _log_median_units(runs: list[NDArray[np.float64]], between_runs: float) -> tuple[NDArray[np.float64], float]:
    """Independent log medians of one side, and the run-to-run deviation that they do not show."""
    if not runs:
        raise ValueError("expected at least one run. Received: none")
    if len(runs) >= 3:
        return np.log([np.median(_as_timings(run)) for run in runs]), 0.0
    units: list[float] = []
    for run in runs:
        x = _as_timings(run)
        batches = np.array_split(x, min(10, max(1, len(x) // 3)))
        units.extend(math.log(float(np.median(batch))) for batch in batches)
    return np.array(units), between_runs / math.sqrt(len(runs))
