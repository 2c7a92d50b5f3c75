"""A Measurement: the raw samples of one piece of work, and what they say."""

from enum import StrEnum
from typing import Annotated, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from tfperf.errors import MeasurementError
from tfperf.measure import statistics
from tfperf.measure.environment import Conditions, Environment
from tfperf.measure.memory import MemoryPeak
from tfperf.measure.statistics import Interval
from tfperf.measure.value import Name, Text, Value
from tfperf.measure.words import format_interval

__all__ = ["Doubt", "Measurement", "Stop"]

CONFIDENCE = 0.95
"""The confidence of the interval around a measurement's median."""

Seconds = Annotated[float, Field(gt=0)]


class Stop(StrEnum):
    """Why sampling ended."""

    PRECISION = "the precision asked for was reached"
    NOISE_FLOOR = "the noise stopped falling"
    TIME_LIMIT = "the time was up"
    SAMPLE_LIMIT = "as many samples as are kept were taken"


class Doubt(Value):
    """A reason to trust a measurement less, in words."""

    name: Name
    words: Text
    advice: Text

    def __str__(self) -> str:
        return f"{self.words}: {self.advice}"


class Measurement(Value):
    """How long one piece of work takes: raw samples, and how they came about. Immutable."""

    name: Name
    seconds: tuple[Seconds, ...] = Field(min_length=1, description="seconds per call of each sample, in order")
    calls_per_sample: int = Field(ge=1, lt=2**63)
    samples_per_turn: int = Field(
        default=1, ge=1, lt=2**63, description="consecutive samples of one turn; 1: measured alone"
    )
    first_call_seconds: Seconds = Field(description="the first call of all: tracing, compiling, allocating")
    warm_up_seconds: tuple[Seconds, ...] = Field(
        description="samples found to be warm-up and dropped, seconds per call"
    )
    precision: float = Field(gt=0, description="half width of the interval asked for, as a share of the median")
    stopped: Stop
    read_cost_seconds: float = Field(ge=0, description="what the clock and the synchronizer add to one sample")
    memory: MemoryPeak
    environment: Environment
    conditions: Conditions
    doubts: tuple[Doubt, ...] = ()

    @model_validator(mode="after")
    def _turns_are_whole(self) -> Self:
        if len(self.seconds) % self.samples_per_turn:
            raise ValueError(
                f"expected whole turns of {self.samples_per_turn} samples, found {len(self.seconds)} samples"
            )
        return self

    @property
    def samples(self) -> NDArray[np.float64]:
        """Seconds per call, shape (samples,), in the order they were taken."""
        return np.array(self.seconds)

    @property
    def turns(self) -> NDArray[np.float64]:
        """The median of each turn, seconds per call, shape (turns,)."""
        medians: NDArray[np.float64] = np.median(self.samples.reshape(-1, self.samples_per_turn), axis=1)
        return medians

    @property
    def interval(self) -> Interval:
        """Median seconds per call, and the interval that holds it with 95 % confidence."""
        return statistics.median_interval(self.turns, CONFIDENCE)

    @property
    def median(self) -> float:
        """Median seconds per call."""
        return self.interval.estimate

    @property
    def interquartile_range(self) -> float:
        """Seconds between the first and the third quartile."""
        low, high = np.percentile(self.samples, [25, 75])
        return float(high - low)

    def percentile(self, percent: float) -> float:
        """Seconds per call that `percent` of the samples do not exceed.

        With more than one call in a sample (`calls_per_sample`) a sample is their mean, and the tail
        of single calls is longer than this says.

        Raises:
            MeasurementError: too few samples to speak of this percentile; p99 needs 662.
        """
        needed = statistics.samples_needed(percent)
        if len(self.seconds) < needed:
            raise MeasurementError(
                f"p{percent:g} of '{self.name}' needs at least {needed} samples, there are {len(self.seconds)}: "
                "measure with min_samples, or a longer time limit"
            )
        return statistics.percentile(self.samples, percent)

    def throughput(self, items_per_call: int = 1) -> float:
        """Items per second, at the median."""
        return items_per_call / self.median

    def __str__(self) -> str:
        return f"{self.name}: {format_interval(self.interval)} a call"
