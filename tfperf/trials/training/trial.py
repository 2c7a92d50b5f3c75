"""What became of one training plan."""

from pydantic import Field

from tfperf.measure import Measurement
from tfperf.measure.value import Count, Name, Text
from tfperf.training.plan import TrainingPlan
from tfperf.trials.training.courses import Course
from tfperf.trials.trial import AnyTrial, Status

__all__ = ["TrainingTrial"]


class TrainingTrial(AnyTrial):
    """One training plan: whether it learns as float32 does, and how fast it trains."""

    plan: TrainingPlan
    proof: dict[Name, Text] = Field(default_factory=dict, description="what shows that the plan took effect")
    course: Course | None = Field(default=None, description="of the first steps; None: they were not trained")
    examples: Count = Field(default=0, description="that a call of the measurement trains on")
    measurement: Measurement | None = Field(default=None, description="of training on so many examples")
    cores_used: float | None = Field(default=None, ge=0, description="processors busy on average while it trained")

    @property
    def name(self) -> str:
        """The name of its measurement: the plan in words."""
        return str(self.plan)

    @property
    def seconds(self) -> float:
        """Seconds for an example; infinite for a plan that did not run."""
        if self.measurement is None or self.status is not Status.RAN:
            return float("inf")
        return self.measurement.interval.estimate / self.examples

    @property
    def examples_per_second(self) -> float:
        """At the median; 0 for a plan that did not run."""
        return 1 / self.seconds
