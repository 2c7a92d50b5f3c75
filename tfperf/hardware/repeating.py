"""How long work takes that nobody disturbs: the best decile of short samples, in passes that must agree."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from tfperf.measure import Doubt
from tfperf.measure.clock import Clock, wall_clock

__all__ = ["Repeats", "Sample", "TimedTask", "best_decile", "doubts_about", "in_turns", "on_change"]

AGREEMENT = 0.05
"""Share by which the two best passes may differ."""

PASSES = 2
"""Passes over all tasks, one after the other, so that a disturbance of some seconds falls on one of them only."""

MOST_PASSES = 6
"""Over tasks whose passes do not agree."""

FEWEST_SAMPLES = 5

Sample = Callable[[], float]
"""Does the work for some milliseconds; returns the seconds of one operation."""


class TimedTask(NamedTuple):
    """Something to be timed."""

    name: str
    prepare: Callable[[], Sample]
    """Called once a pass; what it makes is dropped at the end of the pass."""


class Repeats(NamedTuple):
    """What the passes over a task found."""

    name: str
    passes: tuple[float, ...]
    """Seconds of one operation."""

    @property
    def seconds(self) -> float:
        """The best: whatever else the machine did has only made the others longer."""
        return min(self.passes)

    @property
    def disagreement(self) -> float:
        """The share by which the second best pass is longer than the best."""
        best, second = sorted(self.passes)[:2]
        return second / best - 1

    @property
    def agree(self) -> bool:
        """Whether a second pass says the same."""
        return self.disagreement <= AGREEMENT


def in_turns(
    tasks: Sequence[TimedTask],
    seconds: float,
    *,
    time_limit: float = math.inf,
    clock: Clock = wall_clock,
    on_turn: Callable[[str], None] = lambda _: None,
) -> list[Repeats]:
    """Time all tasks twice, in turns; those whose passes differ by more than 5 % again, up to six times in all.

    Args:
        tasks: those that matter most first, as they are where the time limit leaves some out.
        seconds: of sampling, for each task in each pass; five samples are taken even if they last longer.
        time_limit: seconds after which no task is taken up a third time.
        on_turn: is told the name of each task that is taken up.
    """
    passes: dict[str, list[float]] = {task.name: [] for task in tasks}
    until = clock() + time_limit
    for turn in range(MOST_PASSES):
        for task in tasks:
            found = passes[task.name]
            if turn >= PASSES and (clock() > until or Repeats(task.name, tuple(found)).agree):
                continue
            on_turn(task.name)
            found.append(best_decile(_samples(task.prepare(), seconds, clock)))
    return [Repeats(name, tuple(found)) for name, found in passes.items()]


def on_change(tell: Callable[[str], None], kind: Callable[[str], str]) -> Callable[[str], None]:
    """A function that is told names, and passes their kinds on, each as it differs from the last."""
    last = [""]

    def told(name: str) -> None:
        if kind(name) != last[0]:
            last[0] = kind(name)
            tell(last[0])

    return told


def best_decile(samples: Iterable[float]) -> float:
    """The value that a tenth of the samples do not exceed: undisturbed, and not the one lucky sample."""
    ordered = sorted(samples)
    return ordered[len(ordered) // 10]


def doubts_about(repeats: Sequence[Repeats]) -> tuple[Doubt, ...]:
    """One doubt for all figures whose passes do not agree, naming the worst; none where all agree."""
    noisy = [one for one in repeats if not one.agree]
    if not noisy:
        return ()
    worst = max(noisy, key=lambda one: one.disagreement)
    count = f"{len(noisy)} of {len(repeats)} figures"
    return (
        Doubt(
            name="noisy",
            words=f"too noisy: no two passes agree within {AGREEMENT:.0%} for {count}, "
            f"least for {worst.name} ({worst.disagreement:.0%})",
            advice="those are the best that was seen; quiet the machine and measure again",
        ),
    )


def _samples(sample: Sample, seconds: float, clock: Clock) -> list[float]:
    taken: list[float] = []
    until = clock() + seconds
    while len(taken) < FEWEST_SAMPLES or clock() < until:
        taken.append(sample())
    return taken
