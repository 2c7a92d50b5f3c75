"""What a tuning gives back: the answer, the runner, and the files to deploy."""

import contextlib
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from rich.console import Group

from tfperf.engines.building import build
from tfperf.engines.plan import Plan
from tfperf.engines.runner import Runner
from tfperf.errors import SearchError, ThreadsError
from tfperf.exports.servable import Servable
from tfperf.measure.results import write_result
from tfperf.report.page import notebook_html, write_report
from tfperf.report.tuning import answer, summary_table, trial_table
from tfperf.search.journal import Journal
from tfperf.search.outcome import Outcome
from tfperf.trials.trial import Trial
from tfperf.tuning.deploying import write_deployment

__all__ = ["Best", "Tuned"]


class Best:
    """The winner of a tuning.

    Attributes:
        plan: how it runs the model.
        trial: what was seen of it.
    """

    def __init__(
        self, trial: Trial, servable: Servable, inputs: Sequence[NDArray[Any]] | None, cache: Path | None
    ) -> None:
        """`Tuned` makes these."""
        self.trial, self.plan = trial, trial.plan
        self._servable, self._inputs, self._cache = servable, inputs, cache

    def runner(self) -> Runner:
        """The plan made real in this process: from one array for each input to one for each output.

        A TensorFlow that has started keeps its number of threads; if the plan has another, a warning says so.

        Raises:
            EngineError: the engine cannot, here.
        """
        try:
            return self._built(self.plan)
        except ThreadsError as error:
            warnings.warn(f"{error}; until then the runner takes the threads that there are", stacklevel=2)
            return self._built(self.plan.model_copy(update={"threads": None}))

    def export(self, folder: Path | str) -> Path:
        """Write what runs the plan elsewhere into a folder, whole or not at all; see `write_deployment`.

        Raises:
            EngineError: the engine cannot.
            OSError: the place is not writable, or the disk is full.
        """
        return write_deployment(Path(folder), self._servable, self.trial, self._inputs, self._cache)

    def __repr__(self) -> str:
        return f"<{self.plan}>"

    def _built(self, plan: Plan) -> Runner:
        return build(self._servable, plan, representative=self._inputs, cache=self._cache)


class Tuned:
    """What `tfperf.tune` found; it shows itself as a sentence and, in a notebook, as a table.

    Attributes:
        outcome: all of it, as it is kept in a file.
    """

    def __init__(
        self,
        outcome: Outcome,
        servable: Servable,
        inputs: Sequence[NDArray[Any]] | None = None,
        journal: Journal[Trial] | None = None,
        cache: Path | None = None,
    ) -> None:
        """`tune` makes these."""
        self.outcome = outcome
        self._servable, self._inputs, self._journal, self._cache = servable, inputs, journal, cache

    @property
    def best(self) -> Best:
        """The winner.

        Raises:
            SearchError: nothing ran within the limits.
        """
        trial = self.outcome.best
        if trial is None:
            raise SearchError(f"expected a plan that runs: {answer(self.outcome)}")
        return Best(trial, self._servable, self._inputs, self._cache)

    def export(self, folder: Path | str) -> Path:
        """Write what runs the winner elsewhere into a folder; as `best.export`."""
        return self.best.export(folder)

    def to_json(self, path: Path | str) -> None:
        """Write all of it, for `tfperf report`.

        Raises:
            ResultFileError: the file cannot be written there.
        """
        write_result(path, self.outcome)

    def report(self, path: Path | str) -> None:
        """Write a report: .html, .md or .csv.

        Raises:
            ResultFileError: another suffix, or the file cannot be written there.
        """
        write_report(path, self.outcome)

    def table(self) -> Group:
        """The finalists, for `rich.print`."""
        return summary_table(self.outcome)

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
        return f"<Tuned: {self}>"

    def _repr_html_(self) -> str:
        return notebook_html(self.outcome)
