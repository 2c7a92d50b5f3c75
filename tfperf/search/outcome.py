"""What a search found, as it is kept in a file."""

from datetime import UTC, datetime
from typing import Literal

from pydantic import Field

from tfperf.measure import Comparison, Doubt, Environment, Ratio
from tfperf.measure.value import Count, Name, Text, Value
from tfperf.search.question import Question
from tfperf.trials.trial import Trial

__all__ = ["FROM_PYTHON", "INPUTS_FILE", "MODEL_FROM_PYTHON", "Outcome"]

FROM_PYTHON = "given from Python"
"""In place of what the command line is given, where a program gave the arrays, or a model to train."""

INPUTS_FILE = "INPUTS.npz"
"""In a command, where a program gave the inputs: the file to write them to, by their names."""

MODEL_FROM_PYTHON = "keras.Model "
"""What `opened_as` begins with, before the net's name, where a program gave the model."""


class Outcome(Value):
    """The trials, the finalists measured side by side, and the winner measured again. Immutable."""

    format: Literal["tfperf tune"] = "tfperf tune"
    version: Literal[1] = 1
    created: str = Field(
        default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"), pattern=r"^[0-9T:.+Z-]{1,40}$"
    )
    model: Name = Field(description="the net's name")
    opened_as: Text = Field(description="what the command line is given for it, or that a program gave it")
    signature: Text | None = Field(default=None, description="that was run, of a SavedModel; None: its default")
    seed: Count = Field(default=0, description="of random inputs, and of the weights of a net by name")
    inputs: Text | None = Field(default=None, description="their file, or that a program gave them; None: random")
    labels: Text | None = Field(default=None, description="their file, or that a program gave them; None: none")
    question: Question
    environment: Environment = Field(default_factory=Environment.here)
    seconds: float = Field(ge=0, description="that the search took, without what an earlier one had finished")
    ended: Literal["finished", "time limit", "interrupted"] = "finished"
    trials: tuple[Trial, ...] = Field(description="every plan, with each of its batch sizes, as first looked at")
    final: Comparison | None = Field(default=None, description="the finalists in turns; None: fewer than two")
    confirmation: Comparison | None = Field(
        default=None, description="the winner, its equals and the best default in turns, each in another process"
    )
    winner: Name | None = Field(default=None, description="a trial's name; None: nothing ran, within the limits")
    equals: tuple[Name, ...] = Field(default=(), description="finalists that cannot be told apart from the winner")
    defaults: tuple[Name, ...] = Field(default=(), description="trials of what users have without tfperf")
    front: tuple[Name, ...] = Field(default=(), description="trials that no other surpasses in every objective")
    reference_accuracy: float | None = Field(default=None, ge=0, le=1, description="of the net in float32")
    doubts: tuple[Doubt, ...] = Field(default=(), description="about the search as a whole")

    def trial(self, name: str) -> Trial:
        """The trial of this name.

        Raises:
            KeyError: there is none.
        """
        for trial in self.trials:
            if trial.name == name:
                return trial
        raise KeyError(f"no trial '{name}'")

    @property
    def best(self) -> Trial | None:
        """The winner's trial."""
        return None if self.winner is None else self.trial(self.winner)

    def speed_up(self, default: str) -> Ratio | None:
        """How many times faster the winner is than a default, measured side by side; None: they were not."""
        for comparison in (self.confirmation, self.final):
            names = [measurement.name for measurement in comparison.measurements] if comparison else []
            if comparison and self.winner in names and default in names and self.winner != default:
                return comparison.ratio(default, self.winner)
        return None
