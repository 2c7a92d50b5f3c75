"""Wrong versions of the measuring code, each of which a test must notice.

With the name of a mutant in the environment variable TFPERF_MUTANT the whole of tests/measure runs against
it (conftest.py applies it). test_mutants.py and benchmarks/harness.py run the test named here that must fail.
"""

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from tfperf.measure import benchmark, comparing, comparison, sampling, statistics
from tfperf.measure.statistics import Interval

VARIABLE = "TFPERF_MUTANT"


class Mutant(NamedTuple):
    apply: Callable[[pytest.MonkeyPatch], None]
    caught_by: str
    """File and name of the test that must fail."""


def skip_synchronization(patch: pytest.MonkeyPatch) -> None:
    """The clock is read while the device still works."""

    def timed(self: sampling.Sampler, calls: int) -> float:
        start = self.clock()
        for _ in range(calls):
            self._function(*self._args)
        return self.clock() - start

    patch.setattr(sampling.Sampler, "_timed", timed)


def skip_first_synchronization(patch: pytest.MonkeyPatch) -> None:
    """What the device was given before the sample began counts as part of the sample."""

    def timed(self: sampling.Sampler, calls: int) -> float:
        start = self.clock()
        for _ in range(calls):
            self._function(*self._args)
        self._synchronize()
        return self.clock() - start

    patch.setattr(sampling.Sampler, "_timed", timed)


def skip_synchronization_of_block(patch: pytest.MonkeyPatch) -> None:
    """`with Benchmark(...)` reads the clock while the device still works."""
    patch.setattr(benchmark, "wait_for_devices", lambda: None)
    original = benchmark.Benchmark.__init__

    def without_wait(self: benchmark.Benchmark, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self._synchronize = None

    patch.setattr(benchmark.Benchmark, "__init__", without_wait)


def compare_mean_with_median(patch: pytest.MonkeyPatch) -> None:
    """The baseline's turns are summed up by their mean, the candidate's by their median."""
    original = comparing._ratio

    def ratio(one: Any, other: Any, dropped: int, margin: float) -> Any:
        medians = one.medians
        one.medians = np.reshape(one.samples, (-1, one.length)).mean(axis=1).tolist()
        try:
            return original(one, other, dropped, margin)
        finally:
            one.medians = medians

    patch.setattr(comparing, "_ratio", ratio)


def report_mean_as_median(patch: pytest.MonkeyPatch) -> None:
    """A measurement's median is really its mean."""
    original = statistics.median_interval

    def mean_interval(samples: Any, confidence: float = 0.95) -> Interval:
        return original(samples, confidence)._replace(estimate=float(np.mean(samples)))

    patch.setattr(statistics, "median_interval", mean_interval)


class _Blocked(comparing.Candidate):
    """All turns of one candidate, then all of the next."""

    block = 60

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._stock: list[list[float]] = []

    def take(self) -> None:
        if not self._stock:
            self._stock = [[self.sampler.sample() for _ in range(self.length)] for _ in range(self.block)]
        samples = self._stock.pop(0)
        self.samples.extend(samples)
        self.medians.append(float(np.median(samples)))


def do_not_interleave(patch: pytest.MonkeyPatch) -> None:
    """One candidate is measured after the other."""
    patch.setattr(comparing, "Candidate", _Blocked)


def keep_one_order(patch: pytest.MonkeyPatch) -> None:
    """The candidates take their turns in the same order in every round."""

    class Unshuffled(random.Random):
        def sample(self, population: Any, k: int, **_: Any) -> Any:
            return list(population)[:k]

    patch.setattr(comparing.random, "Random", Unshuffled)


def shuffle_pairs(patch: pytest.MonkeyPatch) -> None:
    """The turns are paired with turns of other rounds."""
    original = statistics.paired_ratio

    def shuffled(numerator: Any, denominator: Any, confidence: float = 0.99) -> Interval:
        return original(numerator, np.random.default_rng(0).permutation(denominator), confidence)

    patch.setattr(statistics, "paired_ratio", shuffled)


def do_not_widen(patch: pytest.MonkeyPatch) -> None:
    """Neighbouring samples that resemble each other count as independent."""
    patch.setattr(statistics, "_widened", lambda estimate, interval, *_: Interval(estimate, *interval))


def judge_by_estimate(patch: pytest.MonkeyPatch) -> None:
    """Whatever is not exactly equal is faster or slower."""

    def judge(interval: Interval, margin: float) -> comparison.Verdict:
        return comparison.Verdict.FASTER if interval.estimate > 1 else comparison.Verdict.SLOWER

    patch.setattr(comparison, "judge", judge)


def swap_verdicts(patch: pytest.MonkeyPatch) -> None:
    """The ratio is the wrong way round."""
    original = statistics.paired_ratio
    patch.setattr(statistics, "paired_ratio", lambda above, below, confidence=0.99: original(below, above, confidence))


def time_the_first_call(patch: pytest.MonkeyPatch) -> None:
    """The warm-up stays among the samples."""
    patch.setattr(statistics, "warm_up_length", lambda samples: 0)


def one_call_per_sample(patch: pytest.MonkeyPatch) -> None:
    """A sample is one call, however short beside the reading of the clock."""
    original = sampling.Sampler.calibrate

    def calibrate(self: sampling.Sampler, *args: Any, **kwargs: Any) -> float:
        seconds = original(self, *args, **kwargs)
        self.calls_per_sample = 1
        return seconds

    patch.setattr(sampling.Sampler, "calibrate", calibrate)


MUTANTS = {
    "skip synchronization": Mutant(skip_synchronization, "test_sampling.py::test_device_work_is_waited_for"),
    "skip the synchronization before a sample": Mutant(
        skip_first_synchronization, "test_sampling.py::test_work_queued_before_is_not_counted"
    ),
    "skip synchronization of a block": Mutant(
        skip_synchronization_of_block, "test_benchmark.py::test_block_waits_for_the_device"
    ),
    "compare mean with median": Mutant(
        compare_mean_with_median, "test_comparing.py::test_spikes_do_not_tell_equal_work_apart"
    ),
    "report the mean as the median": Mutant(report_mean_as_median, "test_measurement.py::test_median_ignores_spikes"),
    "do not interleave": Mutant(do_not_interleave, "test_comparing.py::test_every_round_gives_everyone_a_turn"),
    "do not interleave (by its effect)": Mutant(do_not_interleave, "test_comparing.py::test_drift_cancels"),
    "keep one order": Mutant(keep_one_order, "test_comparing.py::test_the_order_is_random"),
    "shuffle pairs": Mutant(shuffle_pairs, "test_comparing.py::test_drift_cancels"),
    "do not widen": Mutant(do_not_widen, "test_statistics.py::test_median_interval_covers_dependent_samples"),
    "judge by the estimate": Mutant(
        judge_by_estimate,
        "test_comparing.py::test_a_function_against_itself_on_recorded_noise[numpy_quiet-0.005]",
    ),
    "swap verdicts": Mutant(
        swap_verdicts, "test_comparing.py::test_two_percent_is_seen_on_recorded_noise[numpy_quiet-0.005]"
    ),
    "keep the warm-up": Mutant(time_the_first_call, "test_sampling.py::test_warm_up_is_found_and_dropped"),
    "one call per sample": Mutant(one_call_per_sample, "test_sampling.py::test_the_timer_costs_under_a_thousandth"),
}
