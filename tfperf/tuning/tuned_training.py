"""What a tuning of training gives back: the answer, the plan to apply, and the script."""

import contextlib
from pathlib import Path
from typing import Any

import keras
from rich.console import Group

from tfperf.errors import SearchError
from tfperf.measure.results import write_result
from tfperf.report.training import answer, trial_table, write_training_page
from tfperf.search.journal import Journal
from tfperf.search.training.outcome import TrainingOutcome
from tfperf.training.plan import TrainingPlan
from tfperf.trials.training.trial import TrainingTrial
from tfperf.tuning.training_script import script

__all__ = ["BestTraining", "TunedTraining"]


class BestTraining:
    """The winner of a tuning.

    Attributes:
        plan: how it trains.
        trial: what was seen of it.
    """

    def __init__(self, outcome: TrainingOutcome, trial: TrainingTrial) -> None:
        """`TunedTraining` makes these."""
        self.trial, self.plan = trial, trial.plan
        self._outcome = outcome

    def apply(self, model: keras.Model, inputs: Any) -> TrainingPlan:
        """Change a compiled model as the plan says, in place; then `fit` trains it.

        Threads and variables of the environment are not applied: a process that has started keeps its own.

        Args:
            model: built and compiled.
            inputs: a batch, as training has it.

        Returns:
            The plan, whose `fit(model, data, epochs=...)` trains by its loop.

        Raises:
            ValueError: the plan makes a change that this model does not take.
        """
        self.plan.apply(model, inputs)
        return self.plan

    def script(self) -> str:
        """A Python script that trains so, with Keras and `tfperf.training`, on the model and data that were named."""
        return script(self._outcome, self.plan)

    def __repr__(self) -> str:
        return f"<{self.plan}>"


class TunedTraining:
    """What `tfperf.tune_training` found; it shows itself as a sentence.

    Attributes:
        outcome: all of it, as it is kept in a file.
    """

    def __init__(self, outcome: TrainingOutcome, journal: Journal[TrainingTrial] | None = None) -> None:
        """`tune_training` makes these."""
        self.outcome, self._journal = outcome, journal

    @property
    def best(self) -> BestTraining:
        """The winner.

        Raises:
            SearchError: nothing ran.
        """
        if self.outcome.best is None:
            raise SearchError(f"expected a plan that trains: {answer(self.outcome)}")
        return BestTraining(self.outcome, self.outcome.best)

    def to_json(self, path: Path | str) -> None:
        """Write all of it, for `tfperf report`.

        Raises:
            ResultFileError: the file cannot be written there.
        """
        write_result(path, self.outcome)

    def report(self, path: Path | str) -> None:
        """Write a report, .html.

        Raises:
            ResultFileError: another suffix, or the file cannot be written there.
        """
        write_training_page(path, self.outcome)

    def trials(self) -> Group:
        """Every plan, with what became of it, for `rich.print`."""
        return trial_table(self.outcome)

    def forget(self) -> None:
        """Remove what is kept for going on with a search that was stopped, unless another process goes on with it."""
        if self._journal is not None:
            with contextlib.suppress(SearchError), self._journal.held():
                self._journal.discard()

    def __str__(self) -> str:
        return answer(self.outcome)

    def __repr__(self) -> str:
        return f"<TunedTraining: {self}>"
