"""Exercises: the changes that recipes propose under `Try:`, and what became of each of them on a machine."""

from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Literal

from pydantic import Field

from tfperf.cookbook.catalog import Header
from tfperf.errors import RecipeError
from tfperf.measure.results import read_document
from tfperf.measure.value import Name, Text, Value

__all__ = [
    "FORMAT",
    "ExerciseOutcome",
    "ExerciseRun",
    "ExerciseRuns",
    "effects_by_change",
    "exercises_file",
    "read_exercise_runs",
    "split_exercise",
]

FORMAT: Literal["tfperf exercises"] = "tfperf exercises"
"""What the field `format` of every file of exercises says."""

FOLDER = "exercises"
"""The folder beside that of the recordings; it has a file for each machine."""


class ExerciseOutcome(StrEnum):
    """What became of an exercise."""

    HELD = "held"
    FAILED = "did not hold"
    NOT_HERE = "not on this machine"
    """The machine lacks what the effect is about, which says nothing of the effect."""


class ExerciseRun(Value):
    """One exercise that was run: the change, the effect that its recipe states, and what was seen."""

    recipe: Name
    change: Text
    effect: Text = Field(description="what should then happen, in the words of the recipe's header")
    technique: str = Field(pattern="^[0-9a-f]{64}$", description="digest of the technique that was run")
    outcome: ExerciseOutcome
    words: Text = Field(description="the figures, or why there are none")
    created: str = Field(
        default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"), pattern=r"^[0-9T:.+Z-]{1,40}$"
    )

    def is_fresh(self, effect: str, technique: str) -> bool:
        """Whether it was a run of this technique, and was checked for this effect."""
        return (self.effect, self.technique) == (effect, technique)


class ExerciseRuns(Value):
    """The exercises that were run on one machine, by recipe and in the order of its header."""

    format: Literal["tfperf exercises"] = FORMAT
    version: Literal[1] = 1
    runs: tuple[ExerciseRun, ...] = ()

    def find(self, recipe: str, change: str) -> ExerciseRun | None:
        """The run of one exercise, if there is one."""
        return next((run for run in self.runs if (run.recipe, run.change) == (recipe, change)), None)


def exercises_file(recorded: Path, machine: str) -> Path:
    """Where the exercises of a machine are kept, beside the recordings.

    Args:
        recorded: the folder of all recordings, docs/recorded of a checkout.
        machine: its name, as `tfperf.measure.environment.machine_name` gives it.
    """
    return recorded.parent / FOLDER / f"{machine}.json"


def read_exercise_runs(path: Path) -> ExerciseRuns:
    """Read a file of exercises; where there is none, none were run.

    Raises:
        ResultFileError: the file is not what benchmarks/exercises.py writes.
    """
    return read_document(path, ExerciseRuns) if path.exists() else ExerciseRuns()


def split_exercise(text: str) -> tuple[str, str]:
    """Divide an exercise, "CHANGE: what should then happen", into the change and its effect.

    Raises:
        RecipeError: it says no change or no effect.
    """
    change, _, effect = text.partition(": ")
    if not change.strip() or not effect.strip():
        raise RecipeError(f"expected an exercise to be 'CHANGE: what should then happen'. Received: {text}")
    return change.strip(), effect.strip()


def effects_by_change(header: Header) -> dict[str, str]:
    """The exercises of a recipe: change -> what should then happen, in the order of its header.

    Raises:
        RecipeError: two exercises make the same change.
    """
    exercises = dict(split_exercise(text) for text in header.tries)
    if len(exercises) < len(header.tries):
        raise RecipeError(f"expected exercises with different changes. Received: {' / '.join(header.tries)}")
    return exercises
