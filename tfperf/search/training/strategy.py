"""Which training plans are looked at, and in which order."""

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from tfperf.training.plan import CHANGES, LOOPS, VARIABLES, TrainingPlan

__all__ = [
    "CALL_SECONDS",
    "COURSE_SECONDS",
    "FEWEST_LARGE_STEPS",
    "FEWEST_STEPS",
    "FINALISTS",
    "FINAL_ROUNDS",
    "GAIN",
    "HOPELESS",
    "LOOK_CALLS",
    "LOOK_PRECISION",
    "MORE_SEEDS",
    "MOST_STEPS",
    "NEAR",
    "POOR",
    "SEEDS",
    "SEGMENTS",
    "TURN_SECONDS",
    "TrainingSpace",
]

SEEDS = 3
"""Seeds of the reference: the fewest from which a width can be learned with one to spare."""

MORE_SEEDS = 3
"""Further seeds, before a plan is refused for its loss. Of normally distributed losses, drawn a million times, 13 %
leave the widened band of three others, and 1.6 % that of six."""

SEGMENTS = 8
"""Losses of a course that are compared."""

COURSE_SECONDS = 12.0
"""What a course of the reference may take, unless that is fewer than 2 steps a segment."""

MOST_STEPS = 32
"""Steps of a segment."""

FEWEST_STEPS = 5
"""Steps of a call of the measurement: the first is not counted, as fit begins with work that an epoch has once."""

FEWEST_LARGE_STEPS = 3
"""The same with the largest of several batch sizes, which all train on as many examples in a call."""

CALL_SECONDS = 1.0
"""What a call of the measurement takes with the default plan, unless the fewest steps take longer."""

GAIN = 0.01
"""Share by which a plan must be faster in its look for the search to go on from it."""

POOR = 0.03
"""Share by which a plan is slower, from which on what it differs in is not tried again with another plan."""

HOPELESS = 1.3
"""Times the best plan's time in a first call, above which a plan's loss is not checked: its first steps would take long
for nothing, as those of convolutions compiled by XLA."""

NEAR = 1.15
"""Times the best plan's time in its look, up to which a plan may be a finalist."""

LOOK_CALLS = 3
"""Calls of a look: their median decides which plans are near the best, nothing more."""

LOOK_PRECISION = 0.03
"""Half width of the interval at which a look ends, as a share of the median."""

TURN_SECONDS = 1.0
"""What a turn of the final may take beside what is timed: the step before it, and fit's beginning."""

FINALISTS = 3
"""Plans that take turns in the end, and the default beside them."""

FINAL_ROUNDS = 8
"""The fewest rounds from which a ratio has a 99 % interval."""


class TrainingSpace(NamedTuple):
    """The plans of a search.

    Attributes:
        changes: names of `CHANGES` that may be made.
        why_not: those that cannot be made with this model, and why.
        threads: thread counts; None: as many as TensorFlow takes by itself.
        batch_sizes: (None,) for a data set of batches.
        takes_arrays: whether the data are arrays, which loops of tfperf take.
        steps_per_execution: that are tried with Keras's fit.
    """

    changes: tuple[str, ...]
    why_not: dict[str, str]
    threads: tuple[int | None, ...]
    batch_sizes: tuple[int | None, ...]
    takes_arrays: bool
    steps_per_execution: int

    def default(self, batch_size: int | None) -> TrainingPlan:
        """What users have: Keras's fit, in float32, one step after the other."""
        return TrainingPlan(batch_size=batch_size)

    def beginnings(self) -> Iterator[TrainingPlan]:
        """Everything that is likely to pay at once, in float32 and in half precision."""
        likely = [name for name in ("fuse", "fast_optimizer") if name in self._possible()]
        for precision in [[], [name for name in ("mixed_bfloat16",) if name in self._possible()]]:
            changes = _in_order(CHANGES, (*likely, *precision))
            yield self._with_loop(self.default(self.batch_sizes[0]), changes)

    def neighbours(self, plan: TrainingPlan) -> Iterator[tuple[str, TrainingPlan]]:
        """The plans that differ from a plan in one thing, with what it is, and what gains most first."""
        for name in self._possible():
            if name in LOOPS[plan.loop].in_place_of:
                continue
            changes = _in_order(CHANGES, set(plan.changes) ^ {name})
            yield _other(name, name in plan.changes), _with(plan, changes=changes)
        for loop in self._loops():
            if loop != plan.loop:
                changes = tuple(name for name in plan.changes if name not in LOOPS[loop].in_place_of)
                steps = self.steps_per_execution if loop == "fit" else 1
                yield loop, _with(plan, changes=changes, loop=loop, steps_per_execution=steps)
        for batch_size in self.batch_sizes:
            if batch_size != plan.batch_size:
                yield f"batch {batch_size}", _with(plan, batch_size=batch_size)
        for threads in self.threads:
            if threads != plan.threads:
                yield f"{threads} threads", _with(plan, threads=threads)
        for name in VARIABLES:
            variables = set(plan.variables) ^ {name}
            yield _other(name, name in plan.variables), _with(plan, variables=_in_order(VARIABLES, variables))

    @property
    def left_out(self) -> dict[str, str]:
        """The changes that are asked for and cannot be made -> why."""
        return {name: self.why_not[name] for name in self.changes if name in self.why_not}

    def _possible(self) -> list[str]:
        return [name for name in CHANGES if name in self.changes and name not in self.why_not]

    def _loops(self) -> list[str]:
        """The loops that take the data, without those that make a change which is not asked for."""
        takes = [name for name, loop in LOOPS.items() if self.takes_arrays or loop.takes_datasets]
        return [name for name in takes if set(LOOPS[name].in_place_of) <= set(self._possible())]

    def _with_loop(self, plan: TrainingPlan, changes: tuple[str, ...]) -> TrainingPlan:
        own = [name for name in self._loops() if name != "fit"]
        if own:
            return _with(plan, changes=changes, loop=own[0])
        return _with(plan, changes=changes, steps_per_execution=self.steps_per_execution)


def _other(name: str, has_it: bool) -> str:
    return f"without {name}" if has_it else name


def _in_order(known: Iterable[str], chosen: Collection[str]) -> tuple[str, ...]:
    return tuple(one for one in known if one in chosen)


def _with(plan: TrainingPlan, **parts: object) -> TrainingPlan:
    return TrainingPlan(**{**dict(plan), **parts})
