"""What a comparison says: a ratio with its interval for each pair of candidates, and a verdict."""

from enum import StrEnum
from typing import Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from tfperf.measure import statistics
from tfperf.measure.measurement import Doubt, Measurement, Stop
from tfperf.measure.statistics import Interval
from tfperf.measure.value import Name, Value
from tfperf.measure.words import format_ratio

__all__ = ["Comparison", "Ratio", "Verdict", "judge", "paired"]

CONFIDENCE = 0.99
"""The confidence of the interval around a ratio. It is higher than a median's, because a verdict is drawn from it."""

MARGIN = 0.01
"""Times that differ by less than this share count as equal."""

FEWEST_ROUNDS = 8
"""A 99 % interval from signed ranks exists from 8 pairs on: 2 * 0.5**8 < 0.01. Under it there is no verdict."""


class Verdict(StrEnum):
    """What a ratio says of the candidate, against its baseline."""

    FASTER = "faster"
    SLOWER = "slower"
    NO_DIFFERENCE = "no difference"
    TOO_NOISY = "too noisy to say"
    TOO_FEW = "too few rounds"
    """The work is so long that fewer than `FEWEST_ROUNDS` fitted into the time limit."""


class Ratio(Value):
    """How many times faster the candidate is than the baseline: baseline's time by candidate's time."""

    baseline: Name
    candidate: Name
    estimate: float = Field(gt=0)
    low: float = Field(gt=0)
    high: float = Field(gt=0)
    verdict: Verdict

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if not self.low <= self.estimate <= self.high:
            raise ValueError(f"expected low <= estimate <= high, found {self.low}, {self.estimate}, {self.high}")
        return self

    @property
    def names(self) -> tuple[str, str]:
        """Baseline and candidate."""
        return self.baseline, self.candidate

    @property
    def interval(self) -> Interval:
        """The ratio with its 99 % interval."""
        return Interval(self.estimate, self.low, self.high)

    def inverted(self) -> "Ratio":
        """The same, with candidate and baseline changed over."""
        opposite = {Verdict.FASTER: Verdict.SLOWER, Verdict.SLOWER: Verdict.FASTER}
        return Ratio(
            baseline=self.candidate,
            candidate=self.baseline,
            estimate=1 / self.estimate,
            low=1 / self.high,
            high=1 / self.low,
            verdict=opposite.get(self.verdict, self.verdict),
        )

    def __str__(self) -> str:
        return f"{self.candidate} against {self.baseline}: {self.verdict}, {format_ratio(self.interval)}"


class Comparison(Value):
    """Candidates measured side by side, with a ratio and a verdict for each pair. Immutable."""

    measurements: tuple[Measurement, ...] = Field(min_length=2)
    ratios: tuple[Ratio, ...] = Field(min_length=1, description="one for each pair, the earlier name the baseline")
    rounds: int = Field(ge=1, lt=2**63)
    margin: float = Field(gt=0, description="times that differ by less than this share count as equal")
    stopped: Stop
    doubts: tuple[Doubt, ...] = ()

    def __getitem__(self, name: str) -> Measurement:
        """The measurement of one candidate."""
        for measurement in self.measurements:
            if measurement.name == name:
                return measurement
        raise KeyError(f"no candidate '{name}'; there are: {', '.join(m.name for m in self.measurements)}")

    def ratio(self, baseline: str, candidate: str) -> Ratio:
        """How many times faster `candidate` is than `baseline`.

        Raises:
            KeyError: no such candidates.
        """
        for ratio in self.ratios:
            if (ratio.baseline, ratio.candidate) == (baseline, candidate):
                return ratio
            if (ratio.candidate, ratio.baseline) == (baseline, candidate):
                return ratio.inverted()
        names = ", ".join(m.name for m in self.measurements)
        raise KeyError(f"no pair '{baseline}', '{candidate}'; the candidates are: {names}")


def judge(interval: Interval, margin: float) -> Verdict:
    """The verdict on a candidate from the interval of baseline's time by candidate's time.

    No difference: the whole interval lies within the margin. Faster or slower: the estimate lies beyond the
    margin, and the interval excludes 1. Else the noise is too large for what would have to be seen.
    """
    least, most = 1 / (1 + margin), 1 + margin
    if least <= interval.low and interval.high <= most:
        return Verdict.NO_DIFFERENCE
    if interval.low > 1 and interval.estimate > most:
        return Verdict.FASTER
    if interval.high < 1 and interval.estimate < least:
        return Verdict.SLOWER
    return Verdict.TOO_NOISY


def paired(
    baseline: str,
    candidate: str,
    baseline_seconds: NDArray[np.float64],
    candidate_seconds: NDArray[np.float64],
    margin: float,
) -> Ratio:
    """Give the ratio and the verdict of rounds side by side; both arrays of shape (rounds,), seconds per call."""
    estimate, low, high = statistics.paired_ratio(baseline_seconds, candidate_seconds, CONFIDENCE)
    enough = len(baseline_seconds) >= FEWEST_ROUNDS
    return Ratio(
        baseline=baseline,
        candidate=candidate,
        estimate=estimate,
        low=low,
        high=high,
        verdict=judge(Interval(estimate, low, high), margin) if enough else Verdict.TOO_FEW,
    )
