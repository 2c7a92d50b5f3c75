"""What a search for a training plan found, as it is kept in a file."""

from datetime import UTC, datetime
from typing import Literal

from pydantic import Field

from tfperf.measure import Comparison, Doubt, Environment, Ratio
from tfperf.measure.value import Name, Text, Value
from tfperf.trials.training.courses import Course
from tfperf.trials.training.trial import TrainingTrial

__all__ = ["TrainingOutcome"]


class TrainingOutcome(Value):
    """The trials, the finalists measured in turns, and the winner. Immutable."""

    format: Literal["tfperf tune training"] = "tfperf tune training"
    version: Literal[1] = 1
    created: str = Field(
        default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"), pattern=r"^[0-9T:.+Z-]{1,40}$"
    )
    model: Name = Field(description="the model's name")
    opened_as: Text = Field(description="what the command line is given for it, or that a program gave it")
    data: Text = Field(description="what the command line is given for the data, or that a program gave them")
    compiled: Text = Field(default="", description="the line that compiles the model; empty: it comes compiled")
    takes_arrays: bool = Field(description="whether the data are arrays, rather than a data set of batches")
    takes_weights: bool = Field(default=False, description="whether sample weights are among the arrays")
    reshaped: tuple[int, ...] | None = Field(
        default=None, description="shape that each image of a data set is given for the model; None: its own"
    )
    batch_size: int = Field(ge=1, description="of the reference that was looked at first")
    steps: int = Field(ge=1, description="of a segment of a course")
    environment: Environment = Field(default_factory=Environment.here)
    seconds: float = Field(ge=0, description="that the search took, without what an earlier one had finished")
    ended: Literal["finished", "time limit", "interrupted"] = "finished"
    references: dict[Name, tuple[Course, ...]] = Field(
        description="the default plan for each batch size -> its course in float32 with each seed"
    )
    trials: tuple[TrainingTrial, ...] = Field(description="every plan that was looked at, in that order")
    left_out: dict[Name, Text] = Field(
        default_factory=dict, description="changes that were asked for and cannot be made -> why"
    )
    final: Comparison | None = Field(default=None, description="the finalists in turns; None: fewer than two")
    winner: Name | None = Field(default=None, description="a trial's name; None: nothing ran")
    equals: tuple[Name, ...] = Field(default=(), description="finalists that cannot be told apart from the winner")
    default: Name | None = Field(default=None, description="the trial of what users have: Keras's fit in float32")
    doubts: tuple[Doubt, ...] = Field(default=(), description="about the search as a whole")

    def trial(self, name: str) -> TrainingTrial:
        """The trial of this name.

        Raises:
            KeyError: there is none.
        """
        for trial in self.trials:
            if trial.name == name:
                return trial
        raise KeyError(f"no trial '{name}'")

    @property
    def best(self) -> TrainingTrial | None:
        """The winner's trial."""
        return None if self.winner is None else self.trial(self.winner)

    def ratio(self, name: str) -> Ratio | None:
        """How many times as fast as a trial the winner trains, measured in turns; None: they were not."""
        names = [one.name for one in self.final.measurements] if self.final else []
        if self.final is None or self.winner == name or not {self.winner, name} <= set(names):
            return None
        assert self.winner is not None
        return self.final.ratio(name, self.winner)
