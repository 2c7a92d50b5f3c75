"""The search for a training plan: the default, everything at once, then one thing after the other; finals in turns."""

import contextlib
import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from pydantic import Field

from tfperf.measure import Comparison, Progress, Verdict, compare, measure
from tfperf.measure.value import Count, Name, Text, Value
from tfperf.measure.words import plain_ratio
from tfperf.search.journal import Journal
from tfperf.search.training import strategy
from tfperf.search.training.strategy import TrainingSpace
from tfperf.training.plan import SECONDS_PER_CALL, TrainingPlan
from tfperf.trials.process import PlanCall
from tfperf.trials.side_by_side import InTurns, Turns, printable
from tfperf.trials.training.courses import Course, why_not_followed
from tfperf.trials.training.process import Opened, TrainingProcess
from tfperf.trials.training.trial import TrainingTrial
from tfperf.trials.trial import Status, TrialError

__all__ = ["Listener", "TrainingQuestion", "TrainingSearch"]


class Listener(Protocol):
    """Is told how far the search is."""

    def phase(self, words: str) -> None:
        """Something begins."""

    def looked(self, trial: TrainingTrial, best: TrainingTrial | None) -> None:
        """A trial is finished."""

    def measuring(self, progress: Progress) -> None:
        """How far the final is."""


class TrainingQuestion(Value):
    """Among which plans is searched, and what they must keep to. Immutable.

    Attributes:
        changes: names of `CHANGES` that may be made.
        batch_sizes: in rising order; none: that of the data set.
        threads: thread counts to try beside TensorFlow's own choice.
        trial_seconds: for each step of a trial.
        memory_limit: bytes that a trial may use.
        time_limit: seconds of searching; then the best so far are measured. None: to the end.
    """

    changes: tuple[Name, ...]
    batch_sizes: tuple[int, ...] = ()
    threads: tuple[int, ...] = ()
    trial_seconds: float = Field(default=300.0, gt=0)
    memory_limit: Count
    time_limit: float | None = Field(default=None, gt=0)


class Reference(Value):
    """What the default plan has shown of one batch size: what others are measured by. Immutable."""

    name: Name = Field(description="of the model")
    compiled: Text = Field(description="the line that compiles the model; empty: it comes compiled")
    batch_size: int = Field(ge=1)
    why_not: dict[Name, Text]
    takes_arrays: bool
    takes_weights: bool
    reshaped: tuple[int, ...] | None = Field(description="shape that each image of a data set is given; None: its own")
    steps: int = Field(ge=1, description="of a segment of a course")
    examples: int = Field(ge=1, description="of a call of the measurement")
    steps_per_execution: int = Field(ge=1, description="that are worth trying")
    courses: tuple[Course, ...] = Field(description="with each seed, the first of which all plans have")


Start = Callable[[TrainingPlan], TrainingProcess]


class TrainingSearch:
    """One search. `run` does it; what has been found when it is stopped is in the attributes.

    Attributes:
        trials: name -> trial, in the order in which they were looked at.
        references: the default plan's name for each batch size -> its courses with each seed.
        final: the finalists in turns; None: there was none.
        left_out: changes that were asked for and cannot be made -> why.
        ran_out_of_time: whether plans were left alone for lack of time.
    """

    def __init__(
        self,
        question: TrainingQuestion,
        model: str,
        data: str,
        start: Start,
        journal: Journal[TrainingTrial],
        listener: Listener,
        stack: contextlib.ExitStack,
    ) -> None:
        """Look at nothing yet.

        Args:
            model, data: as `TrainingTask` takes them.
            start: starts the process of a plan.
            stack: at its end all processes are ended.
        """
        self._question, self._model, self._data, self._start = question, model, data, start
        self._journal, self._listener = journal, listener
        self._processes: dict[str, TrainingProcess] = {}
        stack.callback(self._end_all)
        self._began = time.monotonic()
        self._references: dict[str, Reference] = {}
        self._poor: set[str] = set()
        self._asked = ""  # the finalist whose process was asked last, but for what is timed
        self.trials: dict[str, TrainingTrial] = {}
        self.left_out: dict[str, str] = {}
        self.final: Comparison | None = None
        self.ran_out_of_time = False

    def run(self) -> None:
        """Search until the finalists have taken turns.

        Raises:
            EngineError: the default plan itself does not train.
        """
        batch_sizes = self._question.batch_sizes or (None,)
        reference = self._reference(batch_sizes[0])
        space = TrainingSpace(
            changes=self._question.changes,
            why_not=reference.why_not,
            threads=(None, *self._question.threads),
            batch_sizes=batch_sizes,
            takes_arrays=reference.takes_arrays,
            steps_per_execution=reference.steps_per_execution,
        )
        self.left_out = space.left_out
        self._listener.phase("everything at once")
        for plan in space.beginnings():
            self._look(plan)
        self._listener.phase("one thing after the other")
        base = self._base(None)
        while (found := self._next(space, base)) is not None:
            what, plan = found
            if not self._look(plan).seconds < (1 + strategy.POOR) * base.seconds:
                self._poor.add(what)
            base = self._base(base)
        self._finals()

    @property
    def references(self) -> dict[str, tuple[Course, ...]]:
        """The default plan's name for each batch size -> its course with each seed."""
        return {name: one.courses for name, one in self._references.items()}

    @property
    def first_reference(self) -> Reference:
        """What the default plan shows of the first batch size."""
        return next(iter(self._references.values()))

    @property
    def default(self) -> str | None:
        """The trial of what users have: the fastest of the default plans, one for each batch size."""
        names = [name for name in self._references if name in self.trials]
        return min(names, key=lambda name: self.trials[name].seconds, default=None)

    def winner(self) -> tuple[str | None, tuple[str, ...]]:
        """The fastest of the final, or of the looks where there was none, and what cannot be told apart from it."""
        if self.final is None:
            best = self._best()
            return (best.name if best else None), ()
        names = [one.name for one in self.final.measurements]
        best_name = min(names, key=lambda name: self.final[name].median / self.trials[name].examples)  # type: ignore[index]
        others = [name for name in names if name != best_name]
        equals = [one for one in others if self.final.ratio(one, best_name).verdict is not Verdict.FASTER]
        return best_name, tuple(equals)

    # ------------------------------------------------------------ looks

    def _reference(self, batch_size: int | None) -> Reference:
        """What the default plan shows, which is looked at with it.

        Raises:
            TrialError: it does not train with this batch size, which is a trial unless it is the first.
        """
        plan = TrainingPlan(batch_size=batch_size)
        name = str(plan)
        if name in self._references:
            return self._references[name]
        noted = self._journal.note("reference", [name], Reference)
        trial = self.trials.get(name) or self._journal.trial(name)
        if trial is None or (trial.status is Status.RAN and noted is None):
            self._listener.phase(f"the reference: {plan}, with {strategy.SEEDS} seeds")
            try:
                noted, trial = self._measured_reference(plan)
                self._journal.add_note("reference", [name], noted)
            except TrialError as error:
                if not self._references:
                    raise
                trial = _failed(plan, error)
            self._journal.add(trial)
        self._note(trial)
        if noted is None or trial.status is not Status.RAN:
            raise TrialError(trial.status, trial.reason)
        self._references[name] = noted
        return noted

    def _measured_reference(self, plan: TrainingPlan) -> tuple[Reference, TrainingTrial]:
        process = self._start(plan)
        try:
            opened = process.open(self._model, self._data)
            process.check_order()
            process.step()
            batch = opened.batch_size
            count = process.prepare(batch * strategy.FEWEST_STEPS)
            seconds = process.work().timed(1) * batch / count
            steps = round(strategy.COURSE_SECONDS / (strategy.SEGMENTS * seconds))
            steps = min(max(steps, 2), strategy.MOST_STEPS)
            courses = [process.course(seed, strategy.SEGMENTS, steps) for seed in reversed(range(strategy.SEEDS))]
            if any(None in course.losses for course in courses):
                raise TrialError(
                    Status.WRONG, f"{plan}: the loss is not finite in float32; check the data and the rate"
                )
            first = next(iter(self._references.values()), None)  # with as many examples as it, whatever the batch size
            wanted = self._examples_of_a_call(batch, seconds) if first is None else first.examples
            examples = process.prepare(wanted)
            trial = self._timed(process, opened, courses[-1], examples)
        except BaseException:
            process.close()
            raise
        self._keep(trial.name, process)
        process.host.rest()
        most = max(1, round(SECONDS_PER_CALL / seconds))
        reference = Reference(
            name=opened.name,
            compiled=opened.compiled,
            batch_size=opened.batch_size,
            why_not={name: printable(why) for name, why in opened.why_not.items()},
            takes_arrays=opened.is_arrays,
            takes_weights=opened.has_weights,
            reshaped=None if opened.reshaped is None else tuple(opened.reshaped),
            steps=steps,
            examples=examples,
            steps_per_execution=min(most, opened.steps_per_epoch),
            courses=tuple(reversed(courses)),
        )
        return reference, trial

    def _examples_of_a_call(self, batch_size: int, step_seconds: float) -> int:
        """How many examples are trained on in a call of the measurement: whole batches of each size, if that may be.

        Args:
            batch_size: of the first reference, the smallest.
            step_seconds: what a step of that takes.
        """
        sizes = self._question.batch_sizes or (batch_size,)
        steps = max(strategy.FEWEST_STEPS, math.ceil(strategy.CALL_SECONDS / step_seconds))
        fewest = max(steps * batch_size, strategy.FEWEST_LARGE_STEPS * max(sizes))
        whole = math.ceil(fewest / math.lcm(*sizes)) * math.lcm(*sizes)
        return whole if whole <= 2 * fewest else fewest

    def _look(self, plan: TrainingPlan) -> TrainingTrial:
        """Start a plan in a process of its own, check what it learns, and measure it shortly."""
        name = str(plan)
        trial: TrainingTrial | None
        try:
            reference = self._reference(plan.batch_size)
        except TrialError as error:
            if not self._references:
                raise
            trial = self.trials.get(name) or _failed(plan, error)  # as Keras's own fit does with this batch size
        else:
            trial = self.trials.get(name) or self._journal.trial(name)  # the reference may be this very plan
            if trial is None:
                trial = self._looked(plan, reference)
                self._journal.add(trial)
        self._note(trial)
        self._end_others()
        return trial

    def _looked(self, plan: TrainingPlan, reference: Reference) -> TrainingTrial:
        name, process = str(plan), None
        try:
            process = self._start(plan)
            opened = process.open(self._model, self._data)
            process.check_order()
            process.step()
            examples = process.prepare(reference.examples)
            best = self._best()
            seconds = process.work().timed(1) / examples
            if best is not None and seconds > strategy.HOPELESS * best.seconds:  # once more: it may have been disturbed
                seconds = min(seconds, process.work().timed(1) / examples)
            if best is not None and seconds > strategy.HOPELESS * best.seconds:
                times = plain_ratio(seconds / best.seconds)
                words = f"took {times} times as long as {best.name} in a first call; its loss was not checked"
                raise TrialError(Status.NOT_TRIED, words)
            course = process.course(0, strategy.SEGMENTS, reference.steps)
            if why := self._why_not(course, plan, reference):
                process.close()
                return TrainingTrial(plan=plan, status=Status.WRONG, reason=printable(why), course=course)
            trial = self._timed(process, opened, course, examples)
        except TrialError as error:
            if process is not None:
                process.close()
            return _failed(plan, error)
        except BaseException:
            if process is not None:
                process.close()
            raise
        process.host.rest()
        self._keep(name, process)
        return trial

    def _why_not(self, course: Course, plan: TrainingPlan, reference: Reference) -> str | None:
        """Why a plan is refused for its course; None: it is not. First more seeds show how wide the band is."""
        why = why_not_followed(course, reference.courses)
        if why is None or None in course.losses or len(reference.courses) > strategy.SEEDS:
            return why
        return why_not_followed(course, self._with_more_seeds(plan, reference).courses)

    def _with_more_seeds(self, plan: TrainingPlan, reference: Reference) -> Reference:
        """Train the default plan with further seeds; where it fails now, what is known stays."""
        default = TrainingPlan(batch_size=plan.batch_size)
        name, more = str(default), range(strategy.SEEDS, strategy.SEEDS + strategy.MORE_SEEDS)
        self._listener.phase(f"the reference: {default}, with {len(more)} more seeds, as {plan} leaves its band")
        try:
            process = self._awake(name)
            courses = tuple(process.course(seed, strategy.SEGMENTS, reference.steps) for seed in more)
            process.host.rest()
        except TrialError:
            return reference
        self._references[name] = reference.model_copy(update={"courses": reference.courses + courses})
        self._journal.add_note("reference", [name], self._references[name])
        return self._references[name]

    def _timed(self, process: TrainingProcess, opened: Opened, course: Course, examples: int) -> TrainingTrial:
        work = process.work()
        work()
        limit = strategy.LOOK_CALLS * max(work.timed(1), 1e-3)
        found = measure(work, name=str(process.plan), time_limit=limit, precision=strategy.LOOK_PRECISION)
        return TrainingTrial(
            plan=process.plan,
            status=Status.RAN,
            proof={name: printable(words) for name, words in opened.proof.items()},
            course=course,
            examples=examples,
            measurement=found,
            cores_used=work.cores_used,
        )

    def _note(self, trial: TrainingTrial) -> None:
        if trial.name not in self.trials:
            self.trials[trial.name] = trial
            self._listener.looked(trial, self._best())

    def _keep(self, name: str, process: TrainingProcess) -> None:
        """Keep the process of a trial for the final, and end the one that it had before."""
        before = self._processes.get(name)
        self._processes[name] = process
        if before is not None:
            before.close()

    def _end_all(self) -> None:
        for process in self._processes.values():
            process.close()

    def _end_others(self) -> None:
        """End the processes of those that would not be finalists now."""
        staying = {*self._finalists(), *self._references}
        for name in [name for name in self._processes if name not in staying]:
            self._processes.pop(name).close()

    def _best(self) -> TrainingTrial | None:
        ran = [trial for trial in self.trials.values() if trial.status is Status.RAN]
        return min(ran, key=lambda trial: trial.seconds, default=None)

    def _base(self, base: TrainingTrial | None) -> TrainingTrial:
        """The plan whose neighbours are looked at: the best, where that is more than noise."""
        best = self._best()
        assert best is not None  # the reference ran
        return best if base is None or best.seconds < (1 - strategy.GAIN) * base.seconds else base

    def _next(self, space: TrainingSpace, base: TrainingTrial) -> tuple[str, TrainingPlan] | None:
        left = (
            one for one in space.neighbours(base.plan) if one[0] not in self._poor and str(one[1]) not in self.trials
        )
        found, limit = next(left, None), self._question.time_limit
        if found is not None and limit is not None and time.monotonic() - self._began > limit:
            self.ran_out_of_time = True
            return None
        return found

    # ------------------------------------------------------------ the final

    def _finalists(self) -> list[str]:
        best = self._best()
        if best is None:
            return []
        near = [one for one in self.trials.values() if one.seconds <= strategy.NEAR * best.seconds]
        return [one.name for one in sorted(near, key=lambda one: one.seconds)][: strategy.FINALISTS]

    def _finals(self) -> None:
        default = self.default
        names = list(dict.fromkeys([*self._finalists(), *([default] if default else [])]))
        while len(names) > 1 and self.final is None:
            self._listener.phase(f"the final: {len(names)} in turns")
            works: dict[str, PlanCall] = {}
            try:
                for name in names:
                    works[name] = self._ready(name).work()
                self.final = self._in_turns(works)
            except TrialError as error:
                lost = next((name for name, work in works.items() if work.failure is not None), self._asked)
                self.trials[lost] = self.trials[lost].model_copy(
                    update={"status": error.status, "reason": printable(str(error)), "measurement": None}
                )
                if (process := self._processes.pop(lost, None)) is not None:
                    process.close()
                names.remove(lost)
                for process in self._processes.values():
                    process.host.rest()

    def _ready(self, name: str) -> TrainingProcess:
        """The process of a trial, ready to train; one that has ended is started again."""
        self._asked = name
        process = self._awake(name)
        process.prepare(self.trials[name].examples)
        process.step()
        process.host.rest()
        return process

    def _awake(self, name: str) -> TrainingProcess:
        """The process of a trial; one that has ended is started again."""
        process = self._processes.get(name)
        if process is not None and process.alive:
            process.host.wake()
            return process
        process = self._start(self.trials[name].plan)
        self._keep(name, process)
        process.open(self._model, self._data)
        return process

    def _in_turns(self, works: dict[str, PlanCall]) -> Comparison:
        turns = Turns()
        taking = {
            name: TrainingTurns(work, turns, process.host.rest, process.host.wake, step=partial(self._step, name))
            for name, work in works.items()
            for process in [self._processes[name]]
        }
        turns_seconds = [
            strategy.TURN_SECONDS + 2 * trial.seconds * trial.examples for trial in map(self.trials.get, works) if trial
        ]
        return compare(
            taking,
            time_limit=strategy.FINAL_ROUNDS * sum(turns_seconds),
            min_rounds=strategy.FINAL_ROUNDS,
            turn_seconds=min(self.trials[name].seconds for name in works),  # a call is long enough
            rest_after=strategy.FINAL_ROUNDS,
            on_progress=self._listener.measuring,
        )

    def _step(self, name: str) -> None:
        """Train by a finalist for one step."""
        self._asked = name
        self._processes[name].step()


def _failed(plan: TrainingPlan, error: TrialError) -> TrainingTrial:
    """The trial of a plan that does not train."""
    return TrainingTrial(plan=plan, status=error.status, reason=printable(str(error)))


class TrainingTurns(InTurns):
    """Training that takes turns: after a rest it is a single step that brings the threads to where they stay."""

    def __init__(self, *args: Any, step: Callable[[], None]) -> None:
        """Take no turn yet; `step` trains for one step."""
        super().__init__(*args)
        self._step = step

    def settle(self) -> None:
        """Train for one step."""
        self._step()
