"""What is searched for, and among what."""

from typing import Literal, Self, get_args

from pydantic import Field, model_validator

from tfperf.engines.checking import TOLERANCES
from tfperf.engines.plan import PRECISIONS, TRANSFORMATIONS, Precision, Transformation
from tfperf.measure.value import Count, Name, Value

__all__ = ["MEMORY_SHARE", "OBJECTIVES", "TOLERANCE", "TOLERANCE_WORDS", "TRIAL_SECONDS", "Objective", "Question"]

TOLERANCE = TOLERANCES["float32"]
"""Unless another is asked for: what float32 differs by that adds up in another order."""

TRIAL_SECONDS = 300.0
"""For each step of a trial, unless others are asked for; converting a large net for int8 takes minutes."""

MEMORY_SHARE = 0.8
"""Share of the machine's memory, and of its free memory, that one trial may use, unless another limit is asked for."""

LABELLED_TOLERANCE = 0.999
"""Where labels decide, an error as large as the largest answer, as zeros have, is still refused."""

Objective = Literal["latency", "throughput", "size", "memory"]
"""latency: seconds a call, few; throughput: examples a second, many; size: bytes on disk of what the engine loads,
few; memory: bytes that its process grows by, few."""

OBJECTIVES: tuple[Objective, ...] = get_args(Objective)

TOLERANCE_WORDS = (
    "the largest difference of any answer from that of the net called eagerly in float32, "
    "as a share of the largest answer of the same output; of whole numbers, the share of them that differ"
)
"""What a tolerance means, for every engine alike (`tfperf.measure.check_agreement`)."""


class Question(Value):
    """What the best is, which plans are looked at, and what they must keep to. Immutable.

    Each field is described in `tfperf.search.options`. Numbers of examples and of threads are in rising order, times in
    seconds, memory in bytes; of several objectives an outcome has the Pareto front, too.
    """

    objectives: tuple[Objective, ...] = Field(default=("latency",), min_length=1)
    batches: tuple[int, ...] = Field(default=(1,), min_length=1)
    threads: tuple[int, ...] = Field(min_length=1)
    engines: tuple[Name, ...] = Field(min_length=1)
    precisions: tuple[Precision, ...] = Field(default=PRECISIONS, min_length=1)
    transformations: tuple[Transformation, ...] = TRANSFORMATIONS
    tolerance: float = Field(default=TOLERANCE, ge=0)
    same_top1: bool = False
    accuracy_drop: float | None = Field(default=None, ge=0, le=1)
    latency_limit: float | None = Field(default=None, gt=0)
    memory_limit: Count
    trial_seconds: float = Field(default=TRIAL_SECONDS, gt=0)
    time_limit: float | None = Field(default=None, gt=0)

    @property
    def is_timed(self) -> bool:
        """Whether times decide who wins."""
        return self.objectives[0] in ("latency", "throughput")

    @property
    def answer_tolerance(self) -> float:
        """Largest relative error of an answer that passes, also where it is labels that decide."""
        return self.tolerance if self.accuracy_drop is None else LABELLED_TOLERANCE

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        for numbers in (self.batches, self.threads):
            if list(numbers) != sorted(set(numbers)) or numbers[0] < 1:
                raise ValueError(f"expected whole numbers from 1 in rising order. Received: {numbers}")
        if len(set(self.objectives)) < len(self.objectives):
            raise ValueError(f"expected objectives, each once. Received: {', '.join(self.objectives)}")
        return self
