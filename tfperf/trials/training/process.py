"""A training plan on its host, which is a process of its own."""

from typing import Any, NamedTuple, Self

from tfperf.training.plan import TrainingPlan
from tfperf.trials.host import Child
from tfperf.trials.process import PlanCall, PlanProcess
from tfperf.trials.training.courses import Course

__all__ = ["Opened", "TrainingProcess"]

MODULE = "tfperf.trials.training.worker"


class Opened(NamedTuple):
    """What a process says when the plan is made real."""

    proof: dict[str, str]
    why_not: dict[str, str]
    """Changes that cannot be made with this model, and why."""
    is_arrays: bool
    has_weights: bool
    """Whether sample weights are among the arrays."""
    reshaped: list[int] | None
    """The shape that each image of a data set is given for the model; None: its own."""
    batch_size: int
    steps_per_epoch: int
    name: str
    compiled: str
    """The line that compiles the model; empty: it comes compiled."""


class TrainingProcess(PlanProcess[TrainingPlan]):
    """Trains by one plan."""

    @classmethod
    def start(cls, plan: TrainingPlan, *, deadline: float, memory_limit: int | None) -> Self:
        """Start a process with the plan's variables of the environment.

        Args:
            deadline: seconds for each answer.
            memory_limit: bytes that it may use; None: no limit.
        """
        limits: dict[str, Any] = {"deadline": deadline, "memory_limit": memory_limit}
        return cls(plan, Child(module=MODULE, environment=plan.environment, **limits))

    def open(self, model: str, data: str) -> Opened:
        """Build the model there and change it as the plan says; see `TrainingWorker.open`."""
        return Opened(**self.ask("open", plan=self.plan.model_dump_json(), model=model, data=data))

    def check_order(self) -> None:
        """Check that the loop trains on each example once an epoch, in another order each time."""
        self.ask("order")

    def course(self, seed: int, segments: int, steps: int) -> Course:
        """Train the first steps anew with a seed; see `TrainingWorker.course`."""
        told = self.ask("course", seed=seed, segments=segments, steps=steps)
        return Course(losses=tuple(told["losses"]), moved=told["moved"], statistics=told["statistics"])

    def prepare(self, examples: int) -> int:
        """Get about so many examples ready to be trained on in a call of `work`; how many there are."""
        return int(self.ask("prepare", examples=examples))

    def work(self) -> PlanCall:
        """The call that trains on what was prepared, to be measured."""
        return PlanCall(self)

    def step(self) -> None:
        """Train for a batch, so that the threads are where they stay."""
        self.ask("step")
