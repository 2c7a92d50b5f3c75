"""What became of one plan with one batch size."""

from enum import StrEnum

from pydantic import Field

from tfperf.engines.plan import Plan
from tfperf.errors import EngineError
from tfperf.measure import Agreement, Measurement
from tfperf.measure.value import Count, Name, Text, Value

__all__ = ["AnyTrial", "Status", "Trial", "TrialError", "median_seconds"]


class Status(StrEnum):
    """How far a plan came."""

    RAN = "ran"
    MISSING = "not installed"
    REFUSED = "refused"
    WRONG = "wrong answers"
    CRASHED = "crashed"
    TIMED_OUT = "timed out"
    OUT_OF_MEMORY = "out of memory"
    NOT_TRIED = "not tried"


class TrialError(EngineError):
    """A plan did not run; `status` says how far it came."""

    def __init__(self, status: Status, words: str) -> None:
        super().__init__(words)
        self.status = status

    def named(self, plan: object, doing: str = "") -> "TrialError":
        """The same, with the plan in its words, and what was done for it."""
        words = str(self)
        return TrialError(self.status, words if str(plan) in words else f"{plan}{doing}: {words}")


class AnyTrial(Value):
    """What trials of every kind say, for who keeps them."""

    status: Status
    reason: Text = Field(default="", description="why it did not run")

    @property
    def name(self) -> str:
        """What its measurement is called."""
        raise NotImplementedError


class Trial(AnyTrial):
    """One plan with one batch size: what it took to run it, whether it answers rightly, and how fast it is."""

    plan: Plan
    batch: int = Field(ge=1)
    command: Text = Field(default="", description="that runs it alone")
    proof: dict[Name, Text] = Field(default_factory=dict, description="what shows that the plan took effect")
    size: Count | None = Field(default=None, description="bytes on disk of what the engine loads; None: nothing")
    load_seconds: float | None = Field(default=None, ge=0, description="for importing the engine and loading the net")
    first_call_seconds: float | None = Field(default=None, ge=0)
    agreement: Agreement | None = None
    accuracy: float | None = Field(default=None, ge=0, le=1, description="share of the labels that it finds")
    measurement: Measurement | None = None
    cores_used: float | None = Field(default=None, ge=0, description="processors busy on average while it ran")

    @property
    def name(self) -> str:
        """The name of its measurement: the plan, with the batch size."""
        return str(self.plan.model_copy(update={"batch": self.batch}))

    @property
    def examples_per_second(self) -> float:
        """At the median; 0 for a plan that did not run."""
        return self.batch / median_seconds(self)

    @property
    def memory(self) -> int | None:
        """What its process has grown by since before the engine was imported, in bytes; None: it did not run."""
        if self.measurement is None:
            return None
        return max(0, self.measurement.memory.resident - self.measurement.memory.resident_before)


def median_seconds(trial: Trial) -> float:
    """The seconds of a call; infinite for a plan that did not run."""
    return trial.measurement.interval.estimate if trial.measurement else float("inf")
