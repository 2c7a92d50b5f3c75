"""What an outcome says: which of its trials are the finalists, what was measured last, what was measured in turns."""

import functools
import itertools
import math

from tfperf.engines.catalog import DEFAULTS
from tfperf.errors import ResultFileError
from tfperf.measure import Comparison, Measurement, Ratio
from tfperf.measure.statistics import Interval
from tfperf.report.tables import each_kind_once
from tfperf.search.outcome import Outcome
from tfperf.search.question import Objective
from tfperf.trials.trial import Status, Trial

__all__ = ["Facts"]

USERS_NAMES = {one.name: one.users_name for one in sorted(DEFAULTS, key=lambda engine: engine.baseline_place)}
"""Engine -> what its users call it. The first of these that ran is what the tables tell speed-ups against."""


class Facts:
    """An outcome, looked up; whatever takes long is worked out once.

    Raises:
        ResultFileError: the outcome contradicts itself, as one that was edited may.
    """

    def __init__(self, outcome: Outcome) -> None:
        _check_whole(outcome)
        self.outcome = outcome
        self.trials = {trial.name: trial for trial in outcome.trials}
        self.best = None if outcome.winner is None else self.trials[outcome.winner]
        self._in_turns = [one for one in (outcome.confirmation, outcome.final) if one is not None]
        self._several_batches = len({trial.batch for trial in outcome.trials}) > 1
        self._intervals: dict[str, Interval | None] = {}

    # ------------------------------------------------------------ names

    def label(self, trial: Trial) -> str:
        """The trial's plan, with its batch size only where there are several; a default as its users call it."""
        name = self._users_name(trial) if trial.name in self.outcome.defaults else trial.plan.engine
        return ", ".join((name, *self._settings(trial)))

    def default_name(self, default: Trial) -> str:
        """What users call a default: model(x); with what tells it from another of the same engine: (batch 256)."""
        users = self._users_name(default)
        alike = [
            trial for trial in map(self.trials.__getitem__, self.outcome.defaults) if self._users_name(trial) == users
        ]
        common = set.intersection(*(set(self._settings(trial)) for trial in (default, *alike)))
        different = [words for words in self._settings(default) if words not in common]
        return f"{users} ({', '.join(different)})" if different else users

    def _users_name(self, trial: Trial) -> str:
        return USERS_NAMES.get(trial.plan.engine, trial.plan.engine)

    def _settings(self, trial: Trial) -> tuple[str, ...]:
        return trial.plan.model_copy(update={"batch": trial.batch if self._several_batches else None}).settings

    # ------------------------------------------------------------ who counts

    @functools.cached_property
    def best_first(self) -> list[Trial]:
        """Every trial: the winner, its equals, the others that ran, those that did not by how far they came."""
        objective, states = self.outcome.question.objectives[0], list(Status)

        def place(trial: Trial) -> tuple[bool, bool, int, float, float]:
            merit, seconds = self.merit(trial, objective), self.merit(trial, "latency") or math.inf
            cost = math.inf if merit is None else -merit if objective == "throughput" else merit
            worse = trial is not self.best, trial.name not in self.outcome.equals
            return *worse, states.index(trial.status), cost, seconds

        return sorted(self.outcome.trials, key=place)

    @functools.cached_property
    def defaults(self) -> list[Trial]:
        """What users have, each engine at its best batch size: as measured in turns, else as it was looked at."""
        best: dict[str, Trial] = {}
        ran = [trial for trial in self.best_first if trial.name in self.outcome.defaults and self.interval(trial)]
        for trial in sorted(ran, key=lambda one: one.name not in self.names_in_turns):
            best.setdefault(trial.plan.engine, trial)
        order = [*USERS_NAMES, *best]
        return sorted(best.values(), key=lambda trial: order.index(trial.plan.engine))

    @property
    def baseline(self) -> Trial | None:
        """The default that the tables tell speed-ups against; None: none ran."""
        return next(iter(self.defaults), None)

    @functools.cached_property
    def finalists(self) -> list[Trial]:
        """The winner, what was measured in turns, and the defaults, best first."""
        names = self.names_in_turns | {trial.name for trial in self.defaults} | {self.outcome.winner}
        return [trial for trial in self.best_first if trial.name in names and self.interval(trial)]

    @functools.cached_property
    def names_in_turns(self) -> set[str]:
        """The names of the trials that were measured in turns."""
        return {measurement.name for comparison in self._in_turns for measurement in comparison.measurements}

    # ------------------------------------------------------------ figures

    def measurement(self, trial: Trial) -> Measurement | None:
        """The last of a trial that ran: that of the confirmation, of the final, of its first look."""
        if trial.status is not Status.RAN:  # it may have run once, and not again
            return None
        return next((one[trial.name] for one in self._in_turns if trial.name in _names(one)), trial.measurement)

    def interval(self, trial: Trial) -> Interval | None:
        """The seconds a call with their interval, from the last measurement of a trial."""
        if trial.name not in self._intervals:
            measurement = self.measurement(trial)
            self._intervals[trial.name] = measurement.interval if measurement else None
        return self._intervals[trial.name]

    def merit(self, trial: Trial, objective: Objective) -> float | None:
        """What an objective looks at: seconds, examples a second, bytes; None: it did not run, or loads no file."""
        interval = self.interval(trial)
        if interval is None:
            return None
        if objective == "latency":
            return interval.estimate
        if objective == "throughput":
            return trial.batch / interval.estimate
        return trial.size if objective == "size" else trial.memory

    def side_by_side(self, default: Trial, trial: Trial) -> Ratio | None:
        """How many times faster than a default, measured in turns; None: the two were not.

        A search keeps ratios of seconds an example: with different batch sizes they are not those of the latencies.
        """
        return self.outcome.model_copy(update={"winner": trial.name}).speed_up(default.name)

    def separate_looks(self, default: Trial, trial: Trial) -> float | None:
        """The same from looks at different times, which says less; None: one of them did not run."""
        ours, theirs = self.merit(trial, "throughput"), self.merit(default, "throughput")
        return ours / theirs if ours and theirs else None

    def only_apart(self, default: Trial, trial: Trial) -> bool:
        """Whether the two were measured, but not in turns."""
        return (
            default is not trial
            and self.side_by_side(default, trial) is None
            and self.separate_looks(default, trial) is not None
        )

    @functools.cached_property
    def doubts(self) -> list[tuple[str, str]]:
        """Whom it concerns ("": all), and the doubt with its advice: each kind once."""
        told = [("", doubt) for doubt in self.outcome.doubts]
        told += [("", doubt) for comparison in self._in_turns for doubt in comparison.doubts]
        for trial in self.finalists:
            measurement = self.measurement(trial)
            told += [(self.label(trial), doubt) for doubt in (measurement.doubts if measurement else ())]
        return each_kind_once(told)


def _check_whole(outcome: Outcome) -> None:
    """Refuse an outcome that names trials or pairs which it does not have."""
    known = {trial.name for trial in outcome.trials}
    told = {*outcome.equals, *outcome.defaults, *outcome.front, *([outcome.winner] if outcome.winner else [])}
    for comparison in filter(None, (outcome.final, outcome.confirmation)):
        names = _names(comparison)
        told.update(names)
        pairs = {frozenset((ratio.baseline, ratio.candidate)) for ratio in comparison.ratios}
        if not pairs >= set(map(frozenset, itertools.combinations(names, 2))):
            raise ResultFileError("the result contradicts itself: a ratio of two that were compared is missing")
    if unknown := sorted(told - known):
        raise ResultFileError(f"the result contradicts itself: it has no trial '{unknown[0]:.100}'")


def _names(comparison: Comparison) -> list[str]:
    return [measurement.name for measurement in comparison.measurements]
