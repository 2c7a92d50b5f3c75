"""When a measurement deserves less trust, and what to do about it. Each rule has a named threshold."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tfperf.measure import statistics
from tfperf.measure.environment import Conditions, Environment
from tfperf.measure.measurement import CONFIDENCE, Doubt, Stop

__all__ = ["Evidence", "doubts_about"]

FEWEST_SAMPLES = 6
"""A distribution-free 95 % interval of a median exists from 6 samples on: 2 * 0.5**6 < 0.05."""

WIDEST_INTERVAL = 3.0
"""Half widths of the interval, in units of the precision asked for, beyond which the median is called vague."""

MOST_OUTLIERS = 0.10
"""Share of samples that may lie over 1.5 interquartile ranges outside the quartiles (Tukey's fences)."""

MOST_DRIFT = 0.03
"""Share by which the medians of the first and the last third may differ."""

MOST_MEMORY = 10.0
"""Autocorrelation time, in samples, above which the samples are called dependent."""

MOST_STEAL = 0.02
"""Share of CPU time that a hypervisor may give to others."""

MOST_BUSY_ELSEWHERE = 0.15
"""Share of CPU time that other processes may take."""

MOST_READ_COST = 0.001
"""Share of a sample that reading the clock and waiting for devices may take."""

SLOW_GOVERNORS = ("powersave", "conservative", "ondemand", "schedutil")
"""Frequency governors under which the clock rate depends on what ran before."""


class Evidence(NamedTuple):
    """What the rules look at."""

    samples: NDArray[np.float64]
    """Seconds per call, shape (n,): one value for each independent look, such as the median of a turn."""
    sample_seconds: float
    """How long one reading lasted, all its calls together."""
    dropped: int
    """Samples dropped as warm-up."""
    precision: float
    stopped: Stop
    read_cost: float
    environment: Environment
    conditions: Conditions


def doubts_about(evidence: Evidence) -> tuple[Doubt, ...]:
    """Every reason to trust the evidence less, the gravest first."""
    return tuple(_rules(evidence))


def _rules(e: Evidence) -> Iterator[Doubt]:
    n = len(e.samples)
    if n < FEWEST_SAMPLES:
        yield Doubt(
            name="few_samples",
            words=f"only {n} sample{'s' if n > 1 else ''}, fewer than {FEWEST_SAMPLES}",
            advice="the interval is just their range; raise the time limit or measure smaller work",
        )
        return  # the other rules on samples need more of them
    if e.read_cost > MOST_READ_COST * e.sample_seconds:
        yield Doubt(
            name="read_cost",
            words=f"reading the clock takes {e.read_cost / e.sample_seconds:.2%} of a sample",
            advice="the work has become faster since it was calibrated; measure again",
        )
    half_width = statistics.median_interval(e.samples, CONFIDENCE).relative_half_width
    if e.stopped is not Stop.PRECISION and half_width > WIDEST_INTERVAL * e.precision:
        yield Doubt(
            name="vague",
            words=f"the median is known to {half_width:.1%} only, {e.precision:.1%} was asked for ({e.stopped})",
            advice="raise the time limit, or quiet the machine",
        )
    if e.dropped >= n:
        yield Doubt(
            name="never_settled",
            words=f"{e.dropped} samples look like warm-up, no fewer than the {n} that were kept",
            advice="raise the time limit; if it stays, look for retracing, caches that grow, or throttling",
        )
    third = n // 3
    drift = float(np.median(e.samples[-third:]) / np.median(e.samples[:third]) - 1)
    if abs(drift) > max(MOST_DRIFT, 3 * half_width):
        yield Doubt(
            name="drift",
            words=f"the last third is {abs(drift):.1%} {'slower' if drift > 0 else 'faster'} than the first",
            advice="trust ratios taken side by side, not this time; or let the machine cool and quieten",
        )
    memory = statistics.autocorrelation_time(e.samples)
    if memory > MOST_MEMORY:
        yield Doubt(
            name="dependent_samples",
            words=f"neighbouring samples resemble each other ({memory:.0f} say as much as 1)",
            advice="the interval is widened for it; a longer run tells more than more samples",
        )
    low, high = np.percentile(e.samples, [25, 75])
    fence = 1.5 * (high - low)
    outliers = float(np.mean((e.samples < low - fence) | (e.samples > high + fence)))
    if outliers > MOST_OUTLIERS:
        yield Doubt(
            name="outliers",
            words=f"{outliers:.0%} of the samples are outliers",
            advice="something interrupts the work; stop other programs, pin the process to its cores",
        )
    if e.conditions.steal_share > MOST_STEAL:
        yield Doubt(
            name="steal",
            words=f"the hypervisor gave {e.conditions.steal_share:.1%} of the CPU time to others",
            advice="trust ratios taken side by side, not this time",
        )
    if e.conditions.busy_elsewhere_share > MOST_BUSY_ELSEWHERE:
        yield Doubt(
            name="busy_machine",
            words=f"other processes took {e.conditions.busy_elsewhere_share:.0%} of the CPU time",
            advice="stop them and measure again",
        )
    if e.environment.frequency_governor in SLOW_GOVERNORS:
        yield Doubt(
            name="governor",
            words=f"the frequency governor is '{e.environment.frequency_governor}'",
            advice="as root: cpupower frequency-set -g performance",
        )
