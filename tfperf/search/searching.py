"""The search: a look at the plans that may be best, the better half again and again, the finalists in turns."""

import contextlib
import functools
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock, RLock
from typing import Any, Literal, NamedTuple, Protocol

from numpy.typing import NDArray

from tfperf.engines.plan import Plan
from tfperf.exports.servable import Servable
from tfperf.measure import Comparison, Progress, measure
from tfperf.search.journal import Journal, Round
from tfperf.search.kept import Kept, Started
from tfperf.search.lanes import STARTERS, Lanes
from tfperf.search.neighbours import Champions
from tfperf.search.objectives import per_example
from tfperf.search.question import Question
from tfperf.search.space import Space
from tfperf.search.standings import FINALISTS, MOST_CONTENDERS, Standings
from tfperf.trials.child import TrialError
from tfperf.trials.launching import Launcher
from tfperf.trials.process import EngineProcess, Loaded, Work
from tfperf.trials.side_by_side import (
    Examples,
    checked_trial,
    failed_trial,
    measure_in_turns,
    measured_trial,
    printable,
)
from tfperf.trials.trial import Status, Trial, median_seconds

__all__ = ["Found", "Labels", "Search", "Watcher"]

LOOK_SECONDS = 0.4
"""The most seconds of measuring for a first look."""

LOOK_PRECISION = 0.03
"""Half width of the interval at which a first look may end."""

ROUND_SECONDS = 0.5
"""Seconds of measuring for each plan before the final; their processes are kept until then."""

FINAL_SECONDS = 5.0
"""The most seconds of measuring for all finalists together, and again for all that are confirmed; more if a round is
long, or the search was."""

FINAL_SHARE = 0.1
"""The share of the search's time so far that may be spent on each of the two: plans of similar speed take long to tell
apart, and a search that took longer can afford it."""

FINAL_ROUNDS = 25
"""In which every finalist has a turn, where their calls are long."""

LONGEST_FINAL = 6
"""Times FINAL_SECONDS, after which a final ends whatever it knows."""

CONFIRMED = 3
"""Plans, at most, that are measured in another process before one of them is announced; the best default comes on
top."""

KEPT_SHARE = 0.25
"""The share of a trial's memory that all processes waiting for their next round may hold together."""

Stage = Literal["round", "final", "confirmation"]


class Watcher(Protocol):
    """Who wants to know how far the search is."""

    def phase(self, words: str) -> None:
        """Something begins."""

    def looked(self, trial: Trial, best: Trial | None, left: int) -> None:
        """A trial is finished; so many are left that are known of."""

    def measuring(self, progress: Progress) -> None:
        """How far the measuring of a round is."""


class Found(NamedTuple):
    """What a search has found so far."""

    trials: tuple[Trial, ...]
    final: Comparison | None
    confirmation: Comparison | None
    winner: str | None
    equals: tuple[str, ...]
    defaults: tuple[str, ...]
    front: tuple[str, ...]


class Labels(NamedTuple):
    """Labelled inputs in files of `store_arrays`, and the accuracy to reach."""

    inputs: Path
    labels: Path
    least: float


class Search:
    """One search. `run` does it; whatever has been found when it is stopped is in `found`."""

    def __init__(
        self,
        servable: Servable,
        question: Question,
        space: Space,
        launcher: Launcher,
        journal: Journal,
        scratch: Path,
        watcher: Watcher,
        *,
        given: Sequence[NDArray[Any]] | None = None,
        seed: int = 0,
        labels: Labels | None = None,
        command: Callable[[Plan, int], str] = lambda _plan, _batch: "",
    ) -> None:
        """Look at nothing yet.

        Args:
            given: inputs of the net, one array each; None: random ones.
            command: what runs a plan with a batch size alone.
        """
        self._servable, self._question, self._space = servable, question, space
        self._launcher, self._journal, self._scratch, self._watcher = launcher, journal, scratch, watcher
        self._given, self._seed, self._labels, self._command = given, seed, labels, command
        self._measuring, self._making_examples, self._noting = Lock(), Lock(), RLock()
        self._standings = Standings(question, space.defaults)
        self._kept = Kept(launcher, KEPT_SHARE * question.memory_limit)
        self._champions = Champions(space, self._standings.cost_of, self._standings.batch_of)
        self._began = time.monotonic()
        self.ran_out_of_time = False

    # ------------------------------------------------------------ what has been found

    @property
    def found(self) -> Found:
        """The best so far, and everything that was seen."""
        standings = self._standings
        winner, equals = standings.winner()
        return Found(
            trials=(*standings.trials.values(), *self._not_tried()),
            final=standings.final,
            confirmation=standings.confirmation,
            winner=winner,
            equals=equals,
            defaults=tuple(standings.defaults()),
            front=standings.front(),
        )

    def run(self) -> None:
        """Search until the winner is confirmed."""
        standings = self._standings
        self._look_around()
        contenders = standings.contenders()
        if len(contenders) > 1 and self._question.is_timed:
            if (found := self._side_by_side("round", contenders)) is not None:
                standings.note_round(found)
            self._look_further()  # what seemed best may not be, and what is changed is the best
            contenders = standings.contenders()
        contenders = contenders[:FINALISTS]
        standings.final = self._side_by_side("final", [*contenders, *standings.best_of_defaults(contenders)])
        winner, equals = standings.winner()
        if winner is not None:
            rivals = [name for name in standings.by_cost(contenders) if standings.is_rival(name, winner)]
            confirmed = list(dict.fromkeys([winner, *equals, *rivals]))[:CONFIRMED]
            defaults = standings.best_of_defaults(confirmed)[:1]
            far = [name for name in defaults if standings.is_far(name, winner)]  # these need no fresh process
            self._kept.end_others(staying={standings.trials[name].plan for name in far})
            standings.confirmation = self._side_by_side("confirmation", [*confirmed, *defaults])

    # ------------------------------------------------------------ looks

    def _look_around(self) -> None:
        """The first look: engines with their usual settings, then what a change of one part may make better.

        What users have is looked at while the processors have nothing better to do: its start takes longest.
        """
        self._watcher.phase("trying the engines")
        with Lanes(self._look_at, self._launcher.close) as lanes:
            lanes.later(plan for plan in self._space.defaults if not self._known(plan))
            lanes.run([plan for plan in self._space.probes() if not self._known(plan)], self._time_is_up)
            self._follow_champions(lanes)
            lanes.finish()

    def _look_further(self) -> None:
        with Lanes(self._look_at, self._launcher.close) as lanes:
            self._follow_champions(lanes)

    def _follow_champions(self, lanes: Lanes) -> None:
        """Look at what a change of one part may make better, until nothing is left to change."""
        lanes.follow(self._next_beside, self._time_is_up)

    def _next_beside(self, running: Collection[Plan]) -> list[Plan]:
        """What to look at beside others; nothing that was looked at before the search was stopped."""
        with self._noting:
            while plans := self._champions.next(running):
                if new := [plan for plan in plans if not self._known(plan)]:
                    return new
        return []

    def _known(self, plan: Plan) -> bool:
        """Whether a plan has been looked at, now or before the search was stopped."""
        named = [Trial(plan=plan, batch=batch, status=Status.NOT_TRIED).name for batch in self._batches(plan)]
        for name in named:
            if name not in self._standings.trials and (finished := self._journal.trial(name)) is not None:
                self._standings.note(finished)
        return all(name in self._standings.trials for name in named)

    def _look_at(self, plan: Plan, left: int) -> None:
        """Start a plan in a process of its own, and measure it shortly at each batch size."""
        batches = self._batches(plan)
        try:
            examples = {batch: self._examples(batch) for batch in batches}
            process, loaded = self._launcher.start(plan)
        except TrialError as error:
            for batch in batches:
                self._finish(failed_trial(plan, batch, error), left)
            return
        try:
            for place, batch in enumerate(batches):
                if why := self._standings.too_late(plan, batches[:place]):
                    self._finish(Trial(plan=plan, batch=batch, status=Status.NOT_TRIED, reason=why), left)
                    continue
                try:
                    trial = self._measured(process, loaded, examples[batch])
                except TrialError as error:
                    trial = failed_trial(plan, batch, error)
                self._finish(trial, left)
        except BaseException:
            self._launcher.end(process)
            raise
        self._keep_or_end(plan, process, loaded)

    def _keep_or_end(self, plan: Plan, process: EngineProcess, loaded: Loaded) -> None:
        """Keep the processes of those that would be finalists now."""
        with self._noting:
            standings = self._standings
            names = standings.by_cost(standings.trials)[:MOST_CONTENDERS]
            wanted = [standings.trials[name] for name in [*names, *standings.best_of_defaults(names)]]
        self._kept.keep(plan, (process, loaded), wanted)

    def _measured(self, process: EngineProcess, loaded: Loaded, examples: Examples) -> Trial:
        trial, work = self._checked(process, loaded, examples)
        with self._measuring, self._launcher.quiet(process):
            found = measure(work, name=trial.name, time_limit=LOOK_SECONDS, precision=LOOK_PRECISION)
        return measured_trial(trial, work, found)

    def _checked(self, process: EngineProcess, loaded: Loaded, examples: Examples) -> tuple[Trial, Work]:
        """A trial whose answers are right, and its work."""
        tolerance = self._question.answer_tolerance
        trial = checked_trial(process, loaded, examples, tolerance=tolerance, same_top1=self._question.same_top1)
        if self._labels is not None and not self._accuracy_is_known(trial):
            accuracy = process.accuracy(examples.batch, self._labels.inputs, self._labels.labels)
            trial = trial.model_copy(update={"accuracy": accuracy})
            if accuracy < self._labels.least:
                raise TrialError(
                    Status.WRONG, f"finds {accuracy:.2%} of the labels, {self._labels.least:.2%} was asked for"
                )
        return trial, process.work(examples.batch)

    def _accuracy_is_known(self, trial: Trial) -> bool:
        """Whether the labels need not be asked: by what users have, or by what has found enough before."""
        return trial.plan in self._space.defaults or trial.name in self._standings.trials

    def _finish(self, trial: Trial, left: int) -> None:
        if self._launcher.closed:  # the search was stopped, and with it the process: the plan is not to blame
            return
        trial = trial.model_copy(update={"command": printable(self._command(trial.plan, trial.batch))})
        with self._noting:
            self._journal.add(trial)
            self._standings.note(trial)
            best, _ = self._standings.winner()
            self._watcher.looked(trial, self._standings.trials[best] if best else None, left)

    def _batches(self, plan: Plan) -> tuple[int, ...]:
        return self._question.batches if plan.batch is None else (plan.batch,)

    def _examples(self, batch: int) -> Examples:
        with self._making_examples:
            return self._stored_examples(batch)

    @functools.cache  # noqa: B019  # as long as the search
    def _stored_examples(self, batch: int) -> Examples:
        return Examples.store(self._scratch, self._servable, batch, self._given, self._seed)

    def _time_is_up(self) -> bool:
        limit = self._question.time_limit
        self.ran_out_of_time = limit is not None and time.monotonic() - self._began > limit
        return self.ran_out_of_time

    # ------------------------------------------------------------ rounds

    def _side_by_side(
        self, stage: Literal["round", "final", "confirmation"], names: Sequence[str]
    ) -> Comparison | None:
        """Measure trials in turns."""
        if (finished := self._journal.round(stage, names)) is None:
            self._watcher.phase(f"{stage}: measuring {len(names)} in turns")
            seconds = ROUND_SECONDS * len(names) if stage == "round" else self._final_seconds(names)
            finished = self._measured_in_turns(names, seconds)
            self._journal.add_round(stage, names, finished)
        for trial in finished.trials:
            if trial.status is not Status.RAN:  # it ran when it was looked at, and does not now
                command = self._standings.trials[trial.name].command
                self._standings.note(trial.model_copy(update={"command": command}))
        if finished.comparison is None:
            return None
        return per_example(finished.comparison, {trial.name: trial.batch for trial in finished.trials})

    def _measured_in_turns(self, names: Sequence[str], seconds: float) -> Round:
        """In the processes that were kept, and fresh ones of all others."""
        looked = [self._standings.trials[name] for name in names]
        plans = list(dict.fromkeys(trial.plan for trial in looked))
        with ThreadPoolExecutor(STARTERS) as pool, contextlib.ExitStack() as stack:
            try:
                started = dict(zip(plans, pool.map(self._started, plans), strict=True))
            except BaseException:
                self._launcher.close()
                raise
            for plan, process in started.items():
                if not isinstance(process, TrialError):
                    stack.callback(self._keep_or_end, plan, *process)
            failed, runs = [], []
            for trial in looked:
                process = started[trial.plan]
                try:
                    if isinstance(process, TrialError):
                        raise process
                    runs.append(self._checked(*process, self._examples(trial.batch)))
                except TrialError as error:
                    failed.append(failed_trial(trial.plan, trial.batch, error))
            measured, comparison = measure_in_turns(runs, seconds, self._watcher.measuring, which_is_fastest=True)
        return Round(trials=(*measured, *failed), comparison=comparison)

    def _started(self, plan: Plan) -> Started | TrialError:
        try:
            return self._kept.take(plan)
        except TrialError as error:
            return error

    def _final_seconds(self, names: Iterable[str]) -> float:
        # Each turn begins with a call that is not timed
        rounds = 2 * FINAL_ROUNDS * sum(median_seconds(self._standings.trials[name]) for name in names)
        share = FINAL_SHARE * (time.monotonic() - self._began)
        return min(max(FINAL_SECONDS, rounds, share), LONGEST_FINAL * FINAL_SECONDS)

    def _not_tried(self) -> Iterator[Trial]:
        seen = {trial.plan for trial in self._standings.trials.values()}
        for plan in self._space.plans():
            if plan not in seen:
                reason = self._champions.why_not(plan, self.ran_out_of_time)
                batch = plan.batch or self._question.batches[0]
                yield Trial(plan=plan, batch=batch, status=Status.NOT_TRIED, reason=printable(reason))
