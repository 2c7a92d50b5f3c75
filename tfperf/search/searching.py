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
from tfperf.measure import Comparison, Measurement, Progress, measure
from tfperf.measure.doubts import FEWEST_SAMPLES
from tfperf.search import strategy
from tfperf.search.candidates import Candidates
from tfperf.search.journal import Journal, Round
from tfperf.search.question import Question
from tfperf.search.ranking import Ranking, per_example, undisturbed
from tfperf.search.running import PlanQueue, Started, WaitingProcesses
from tfperf.search.space import Space
from tfperf.trials.launching import Launcher
from tfperf.trials.process import EngineProcess, Loaded, PlanCall
from tfperf.trials.side_by_side import (
    Examples,
    checked_trial,
    failed_trial,
    measure_in_turns,
    measured_trial,
    printable,
)
from tfperf.trials.trial import Status, Trial, TrialError, median_seconds

__all__ = ["Found", "Labels", "Search", "Watcher"]

RoundName = Literal["round", "final", "confirmation"]


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
    """One search. `run` does it; whatever has been found when it is stopped is in `found`.

    Attributes:
        ran_out_of_time: whether plans were left alone for lack of time.
    """

    def __init__(
        self,
        servable: Servable,
        question: Question,
        space: Space,
        launcher: Launcher,
        journal: Journal[Trial],
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
        self._ranking = Ranking(question, space.defaults)
        self._waiting = WaitingProcesses(launcher, strategy.KEPT_SHARE.value * question.memory_limit)
        self._candidates = Candidates(space, self._ranking.cost_of, self._ranking.batch_of)
        self._began = time.monotonic()
        self.ran_out_of_time = self._interrupted = False

    # ------------------------------------------------------------ what has been found

    @property
    def found(self) -> Found:
        """The best so far, and everything that was seen."""
        ranking = self._ranking
        winner, equals = ranking.winner()
        return Found(
            trials=(*ranking.trials.values(), *self._not_tried()),
            final=ranking.final,
            confirmation=ranking.confirmation,
            winner=winner,
            equals=equals,
            defaults=tuple(ranking.defaults()),
            front=ranking.front(),
        )

    def run(self) -> None:
        """Search until the winner is confirmed."""
        ranking = self._ranking
        self._look_around()
        contenders = ranking.contenders()
        if len(contenders) > 1 and self._question.is_timed:
            if (found := self._side_by_side("round", contenders)) is not None:
                ranking.note_round(found)
            self._look_further()  # what seemed best may not be, and what is changed is the best
            contenders = ranking.contenders()
        contenders = contenders[: strategy.FINALISTS.number]
        ranking.final = self._side_by_side("final", [*contenders, *ranking.best_of_defaults(contenders)])
        winner, equals = ranking.winner()
        if winner is not None:
            rivals = [name for name in ranking.by_cost(contenders) if ranking.is_rival(name, winner)]
            confirmed = list(dict.fromkeys([winner, *equals, *rivals]))[: strategy.CONFIRMED.number]
            defaults = ranking.best_of_defaults(confirmed)[:1]
            far = [name for name in defaults if ranking.is_far(name, winner)]  # these need no fresh process
            self._waiting.end_others(staying={ranking.trials[name].plan for name in far})
            ranking.confirmation = self._side_by_side("confirmation", [*confirmed, *defaults])

    # ------------------------------------------------------------ looks

    def _look_around(self) -> None:
        """The first look: engines with their usual settings, then what a change of one part may make better.

        What users have is looked at while the processors have nothing better to do: its start takes longest.
        """
        self._watcher.phase("trying the engines")
        with self._looks() as queue:
            queue.later(plan for plan in self._space.defaults if not self._known(plan))
            probes = [plan for plan in self._space.probes() if not self._known(plan)]
            self._leave(queue.run(probes, self._time_is_up))
            self._follow_candidates(queue)
            queue.finish()

    def _look_further(self) -> None:
        with self._looks() as queue:
            self._follow_candidates(queue)

    @contextlib.contextmanager
    def _looks(self) -> Iterator[PlanQueue]:
        """A few looks at a time; where they are interrupted, those that were not finished are taken back."""
        try:
            with PlanQueue(self._look_at, self._launcher.close) as queue:
                yield queue
        except KeyboardInterrupt:
            self._interrupted = True
            self._candidates.forget_but({trial.plan for trial in self._ranking.trials.values()})
            raise

    def _follow_candidates(self, queue: PlanQueue) -> None:
        """Look at what a change of one part may make better, until nothing is left to change."""
        self._leave(queue.follow(self._next_beside, self._time_is_up))

    def _leave(self, plans: Sequence[Plan]) -> None:
        """Note that the time was up before these were looked at."""
        if plans:
            self.ran_out_of_time = True
            self._candidates.forget(plans)

    def _next_beside(self, running: Collection[Plan]) -> list[Plan]:
        """What to look at beside others; nothing that was looked at before the search was stopped."""
        with self._noting:
            while plans := self._candidates.next(running):
                if new := [plan for plan in plans if not self._known(plan)]:
                    return new
        return []

    def _known(self, plan: Plan) -> bool:
        """Whether a plan has been looked at, now or before the search was stopped."""
        return not self._batches_left(plan)

    def _batches_left(self, plan: Plan) -> list[int]:
        """The batch sizes at which a plan was not looked at, neither now nor before the search was stopped."""
        names = {batch: _name(plan, batch) for batch in self._batches(plan)}
        with self._noting:
            for name in names.values():
                if name not in self._ranking.trials and (finished := self._journal.trial(name)) is not None:
                    self._ranking.note(finished)
            return [batch for batch, name in names.items() if name not in self._ranking.trials]

    def _look_at(self, plan: Plan, left: int) -> None:
        """Start a plan in a process of its own, and measure it shortly at each batch size that is left."""
        batches = self._batches_left(plan)
        try:
            examples = {batch: self._examples(batch) for batch in batches}
            process, loaded = self._launcher.start(plan)
        except TrialError as error:
            for batch in batches:
                self._finish(failed_trial(plan, batch, error), left)
            return
        try:
            for batch in batches:
                smaller = [one for one in self._batches(plan) if one < batch]
                if why := self._ranking.too_late(plan, smaller):
                    trial = Trial(plan=plan, batch=batch, status=Status.NOT_TRIED, reason=why)
                    # Where the first has failed for the moment, it is tried again later, and then so is this
                    self._finish(trial, left, keep=self._journal.trial(_name(plan, smaller[0])) is not None)
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
            ranking = self._ranking
            names = ranking.by_cost(ranking.trials)[: strategy.MOST_CONTENDERS.number]
            wanted = [ranking.trials[name] for name in [*names, *ranking.best_of_defaults(names)]]
        self._waiting.keep(plan, (process, loaded), wanted)

    def _measured(self, process: EngineProcess, loaded: Loaded, examples: Examples) -> Trial:
        trial, work = self._checked(process, loaded, examples)
        with self._measuring, self._launcher.quiet(process):
            found = _measured_shortly(work, trial.name)
            if _was_held_up(found):  # once more: one pause may take all of its time
                found = min(found, _measured_shortly(work, trial.name), key=undisturbed)
        return measured_trial(trial, work, found)

    def _checked(self, process: EngineProcess, loaded: Loaded, examples: Examples) -> tuple[Trial, PlanCall]:
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
        return trial.plan in self._space.defaults or trial.name in self._ranking.trials

    def _finish(self, trial: Trial, left: int, *, keep: bool = True) -> None:
        if self._launcher.closed:  # the search was stopped, and with it the process: the plan is not to blame
            return
        trial = trial.model_copy(update={"command": printable(self._command(trial.plan, trial.batch))})
        with self._noting:
            if keep:
                self._journal.add(trial)
            self._ranking.note(trial)
            best, _ = self._ranking.winner()
            self._watcher.looked(trial, self._ranking.trials[best] if best else None, left)

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
        return limit is not None and time.monotonic() - self._began > limit

    # ------------------------------------------------------------ rounds

    def _side_by_side(self, stage: RoundName, names: Sequence[str]) -> Comparison | None:
        """Measure trials in turns."""
        if (finished := self._journal.round(stage, names)) is None:
            self._watcher.phase(f"{stage}: measuring {len(names)} in turns")
            seconds = strategy.ROUND_SECONDS.value * len(names) if stage == "round" else self._final_seconds(names)
            finished = self._measured_in_turns(names, seconds)
            self._journal.add_round(stage, names, finished)
        for trial in finished.trials:
            if trial.status is not Status.RAN:  # it ran when it was looked at, and does not now
                command = self._ranking.trials[trial.name].command
                self._ranking.note(trial.model_copy(update={"command": command}))
        if finished.comparison is None:
            return None
        return per_example(finished.comparison, {trial.name: trial.batch for trial in finished.trials})

    def _measured_in_turns(self, names: Sequence[str], seconds: float) -> Round:
        """In the processes that were kept, and fresh ones of all others."""
        looked = [self._ranking.trials[name] for name in names]
        plans = list(dict.fromkeys(trial.plan for trial in looked))
        with ThreadPoolExecutor(strategy.STARTERS.number) as pool, contextlib.ExitStack() as stack:
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
            return self._waiting.take(plan)
        except TrialError as error:
            return error

    def _final_seconds(self, names: Iterable[str]) -> float:
        # Each turn begins with a call that is not timed
        rounds = 2 * strategy.FINAL_ROUNDS.value * sum(median_seconds(self._ranking.trials[name]) for name in names)
        share = strategy.FINAL_SHARE.value * (time.monotonic() - self._began)
        return min(
            max(strategy.FINAL_SECONDS.value, rounds, share),
            strategy.LONGEST_FINAL.value * strategy.FINAL_SECONDS.value,
        )

    def _not_tried(self) -> Iterator[Trial]:
        seen = {trial.plan for trial in self._ranking.trials.values()}
        cut_short = "the search was interrupted" if self._interrupted else "the time was up" * self.ran_out_of_time
        for plan in self._space.plans():
            if plan not in seen:
                reason = self._candidates.why_not(plan, cut_short)
                batch = plan.batch or self._question.batches[0]
                yield Trial(plan=plan, batch=batch, status=Status.NOT_TRIED, reason=printable(reason))


def _measured_shortly(work: PlanCall, name: str) -> Measurement:
    """A look at work that is ready."""
    limit, precision = strategy.LOOK_SECONDS.value, strategy.LOOK_PRECISION.value
    return measure(work, name=name, time_limit=limit, precision=precision)


def _was_held_up(look: Measurement) -> bool:
    """Whether a look has too few samples, though enough of its calls take no more than half of its time."""
    enough_take = FEWEST_SAMPLES * look.first_call_seconds
    return len(look.seconds) < FEWEST_SAMPLES and enough_take <= strategy.LOOK_SECONDS.value / 2


def _name(plan: Plan, batch: int) -> str:
    """The name of the trial of a plan with a batch size."""
    return Trial(plan=plan, batch=batch, status=Status.NOT_TRIED).name
