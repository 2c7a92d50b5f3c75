"""Which is faster, and by how much: candidates measured side by side, interleaved, in one run."""

import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from tfperf.measure import statistics
from tfperf.measure.clock import Clock, Synchronizer, wall_clock
from tfperf.measure.environment import Environment, Watch
from tfperf.measure.measurement import Doubt, Measurement, Stop
from tfperf.measure.sampling import (
    LOOK_GROWTH,
    MIN_SECONDS,
    SAMPLE_LIMIT,
    WARM_UP_SECONDS,
    Progress,
    Sampler,
    check_limits,
    reason_to_stop,
)
from tfperf.measure.statistics import Interval
from tfperf.measure.value import Name, Value
from tfperf.measure.words import format_ratio

__all__ = ["Comparison", "Ratio", "Verdict", "compare", "judge"]

CONFIDENCE = 0.99
"""Of the interval around a ratio. Higher than a median's, because a verdict is drawn from it."""

MARGIN = 0.01
"""Times that differ by less than this share count as equal."""

TIME_LIMIT = 20.0
"""Seconds for all candidates together; their first calls come before and are not counted."""

MIN_ROUNDS = 20
"""Rounds before the ratios are believed, unless the time is up."""

FEWEST_ROUNDS = 8
"""A 99 % interval from signed ranks exists from 8 pairs on: 2 * 0.5**8 < 0.01. Under it there is no verdict."""

MOST_ROUNDS = 2000
"""Most rounds: the estimate looks at every pair of rounds."""

TURN_SECONDS = 0.005
"""What a candidate measures before the next one's turn: long beside what changing over costs."""

PLANNING_LOOKS = 5
"""Samples whose median decides how long a candidate's turns are: one alone may be a spike."""

REFILL_LIMIT = 0.05
"""Work shorter than this many seconds is called once untimed at the start of each turn: it finds the caches
full of another candidate's data, and in use it would not."""

FINEST_SHARE = 1 / 50
"""A ratio need not be known better than to this share of its own distance from 1."""

RESTING_SHARE = 1 / 10
"""The same where the question is which is the fastest: that it is another is then beyond doubt."""


class Verdict(StrEnum):
    """What a ratio says of the candidate, against its baseline."""

    FASTER = "faster"
    SLOWER = "slower"
    NO_DIFFERENCE = "no difference"
    TOO_NOISY = "too noisy to say"


class Ratio(Value):
    """How many times faster the candidate is than the baseline: baseline's time by candidate's time."""

    baseline: Name
    candidate: Name
    estimate: float = Field(gt=0)
    low: float = Field(gt=0)
    high: float = Field(gt=0)
    verdict: Verdict

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if not self.low <= self.estimate <= self.high:
            raise ValueError(f"expected low <= estimate <= high, found {self.low}, {self.estimate}, {self.high}")
        return self

    @property
    def names(self) -> tuple[str, str]:
        """Baseline and candidate."""
        return self.baseline, self.candidate

    @property
    def interval(self) -> Interval:
        """The ratio with its 99 % interval."""
        return Interval(self.estimate, self.low, self.high)

    def inverted(self) -> "Ratio":
        """The same, with candidate and baseline changed over."""
        opposite = {Verdict.FASTER: Verdict.SLOWER, Verdict.SLOWER: Verdict.FASTER}
        return Ratio(
            baseline=self.candidate,
            candidate=self.baseline,
            estimate=1 / self.estimate,
            low=1 / self.high,
            high=1 / self.low,
            verdict=opposite.get(self.verdict, self.verdict),
        )

    def __str__(self) -> str:
        return f"{self.candidate} against {self.baseline}: {self.verdict}, {format_ratio(self.interval)}"


class Comparison(Value):
    """Candidates measured side by side, with a ratio and a verdict for each pair. Immutable."""

    measurements: tuple[Measurement, ...] = Field(min_length=2)
    ratios: tuple[Ratio, ...] = Field(min_length=1, description="one for each pair, the earlier name the baseline")
    rounds: int = Field(ge=1, lt=2**63)
    margin: float = Field(gt=0, description="times that differ by less than this share count as equal")
    stopped: Stop
    doubts: tuple[Doubt, ...] = ()

    def __getitem__(self, name: str) -> Measurement:
        """The measurement of one candidate."""
        for measurement in self.measurements:
            if measurement.name == name:
                return measurement
        raise KeyError(f"no candidate '{name}'; there are: {', '.join(m.name for m in self.measurements)}")

    def ratio(self, baseline: str, candidate: str) -> Ratio:
        """How many times faster `candidate` is than `baseline`.

        Raises:
            KeyError: no such candidates.
        """
        for ratio in self.ratios:
            if (ratio.baseline, ratio.candidate) == (baseline, candidate):
                return ratio
            if (ratio.candidate, ratio.baseline) == (baseline, candidate):
                return ratio.inverted()
        names = ", ".join(m.name for m in self.measurements)
        raise KeyError(f"no pair '{baseline}', '{candidate}'; the candidates are: {names}")


def judge(interval: Interval, margin: float) -> Verdict:
    """The verdict on a candidate from the interval of baseline's time by candidate's time.

    No difference: the whole interval lies within the margin. Faster or slower: the estimate lies beyond the
    margin, and the interval excludes 1. Else the noise is too large for what would have to be seen.
    """
    least, most = 1 / (1 + margin), 1 + margin
    if least <= interval.low and interval.high <= most:
        return Verdict.NO_DIFFERENCE
    if interval.low > 1 and interval.estimate > most:
        return Verdict.FASTER
    if interval.high < 1 and interval.estimate < least:
        return Verdict.SLOWER
    return Verdict.TOO_NOISY


def compare(
    candidates: Mapping[str, Callable[..., Any]],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    margin: float = MARGIN,
    time_limit: float = TIME_LIMIT,
    min_rounds: int = MIN_ROUNDS,
    turn_seconds: float = TURN_SECONDS,
    rest_after: int | None = None,
    clock: Clock = wall_clock,
    synchronize: Synchronizer | None = None,
    seed: int | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Comparison:
    """Measure candidates side by side and say, for each pair, which is faster and by how much.

    Each round gives every candidate a turn, in random order. The turns of one round make pairs, so
    that what slows the machine for a while slows both sides of each ratio. Sampling ends when every
    ratio is known to half the margin (a large ratio: to a fiftieth of its distance from 1), when more
    rounds no longer help, or when the time is up. Work so slow that the time would not do for a verdict on it has no
    more turns once it has taken its equal share of the time, so that the others have theirs.

    Args:
        candidates: name -> function; each is called with the same `args` and `kwargs`. One that `TimesItself`, as
            its work is done in another process, is asked for its seconds.
        margin: times that differ by less than this share count as equal.
        time_limit: seconds for all candidates together; their first calls come before.
        min_rounds: rounds to take at least, unless the time is up or `rest_after` is given.
        turn_seconds: of measuring, before the next candidate's turn; raise it where changing over costs more.
        rest_after: rounds after which a candidate has no more turns once its ratio to the fastest is known, so that
            those which may be the fastest have the rest of the time, and other ratios stay as they are; None: all have
            a turn in every round.
        clock: returns seconds.
        synchronize: waits for the devices before each reading; None: found from what is loaded.
        seed: of the random order; None: another one each time.
        on_progress: called now and then, outside the samples.

    Raises:
        MeasurementError: the clock does not move.
        ValueError: fewer than two candidates, or a limit that is not positive.
    """
    check_limits(margin=margin, time_limit=time_limit, min_rounds=min_rounds, turn_seconds=turn_seconds)
    first_look = max(FEWEST_ROUNDS, rest_after) if rest_after is not None else min_rounds
    if len(candidates) < 2:
        raise ValueError(f"expected at least two candidates to compare. Received: {', '.join(candidates) or 'none'}")
    environment, watch, order = Environment.here(), Watch(), random.Random(seed)
    began, first_calls = clock(), 0.0
    samplers, spent_by = {}, {}  # -> about how many seconds a call takes; seconds that were spent on it so far
    for name, function in candidates.items():
        sampler = Sampler(name, function, args, kwargs, clock=clock, synchronize=synchronize)
        first_calls += sampler.first_call_seconds
        start = clock()
        samplers[sampler] = sampler.calibrate(min(WARM_UP_SECONDS, time_limit / (4 * len(candidates))))
        spent_by[sampler] = clock() - start
    turns = _plan(samplers, turn_seconds)
    active, share = turns, FINEST_SHARE if rest_after is None else RESTING_SHARE
    slow = [turn for turn in turns if FEWEST_ROUNDS * samplers[turn.sampler] > time_limit]
    fair = time_limit / len(turns)
    half_widths: list[tuple[int, float]] = []
    next_look, rounds = first_look, 0
    stopped: Stop | None = None
    while stopped is None:
        for turn in order.sample(active, len(active)):
            start = clock()
            turn.take()
            spent_by[turn.sampler] += clock() - start
        rounds += 1
        spent = clock() - began - first_calls - sum(max(0.0, spent_by[turn.sampler] - fair) for turn in slow)
        if rounds >= next_look and spent >= MIN_SECONDS:
            next_look = math.ceil(rounds * LOOK_GROWTH)
            dropped = _warm_up_rounds(turns, slow)
            ratios = _ratios(turns, dropped, margin)
            if rest_after is not None:  # the question is which is the fastest, not how far apart the others are
                fastest = min(active, key=lambda turn: float(np.median(turn.medians[dropped:]))).sampler.name
                ratios = [ratio for ratio in ratios if fastest in ratio.names]
            # Half the margin tells a difference of the margin from none; far from 1 less will do
            vague = [ratio for ratio in ratios if _log_half_width(ratio) > max(margin / 2, share * _distance(ratio))]
            half_width = max(_log_half_width(ratio) for ratio in vague or ratios)
            half_widths.append((rounds - dropped, half_width))
            if on_progress:
                on_progress(Progress(rounds, spent, time_limit, half_width))
            if rounds - dropped >= first_look:
                stopped = reason_to_stop(not vague, half_widths)
                if stopped is Stop.NOISE_FLOOR and any(ratio.verdict is Verdict.TOO_NOISY for ratio in ratios):
                    stopped = None  # an answer is worth the rest of the time
            if rest_after is not None and vague:
                active = [turn for turn in active if any(turn.sampler.name in ratio.names for ratio in vague)]
        active = [turn for turn in active if turn not in slow or spent_by[turn.sampler] < fair]
        if stopped is None and (spent >= time_limit or len(active) < 2):
            stopped = Stop.TIME_LIMIT
        if stopped is None and (rounds >= MOST_ROUNDS or any(turn.full for turn in turns)):
            stopped = Stop.SAMPLE_LIMIT
    dropped = _warm_up_rounds(turns, slow)
    conditions = watch.conditions()
    return Comparison(
        measurements=tuple(
            turn.sampler.measurement(
                turn.samples,
                dropped=dropped,
                samples_per_turn=turn.length,
                precision=margin,
                stopped=stopped,
                environment=environment,
                conditions=conditions,
            )
            for turn in turns
        ),
        ratios=tuple(_ratios(turns, dropped, margin)),
        rounds=rounds - dropped,
        margin=margin,
        stopped=stopped,
        doubts=_doubts(rounds - dropped),
    )


class _Turns:
    """The turns of one candidate."""

    def __init__(self, sampler: Sampler, length: int, refill: bool) -> None:
        self.sampler = sampler
        self.length = length
        self.samples: list[float] = []
        self.medians: list[float] = []
        self._refill = refill

    @property
    def full(self) -> bool:
        return len(self.samples) + self.length > SAMPLE_LIMIT

    def take(self) -> None:
        if self._refill:
            self.sampler.call()
        samples = [self.sampler.sample() for _ in range(self.length)]
        self.samples.extend(samples)
        self.medians.append(float(np.median(samples)))


def _plan(samplers: dict[Sampler, float], turn_seconds: float) -> list[_Turns]:
    """Turns of about so many seconds, with as many calls and samples for all candidates of like speed.

    The median of two skewed samples is their mean and lies higher than the median of ten, so turns of
    different lengths would tell equal work apart.

    Args:
        samplers: about how many seconds a call of each takes.
    """
    seconds = {
        # One look may be a spike; work as long as REFILL_LIMIT has turns of one sample whatever it is.
        s: float(np.median([s.sample() for _ in range(PLANNING_LOOKS)])) if about < REFILL_LIMIT else about
        for s, about in samplers.items()
    }
    alike = {s: [other for other in seconds if 0.5 < seconds[other] / seconds[s] < 2] for s in seconds}
    calls = {s: max(other.calls_per_sample for other in alike[s]) for s in seconds}
    for sampler in seconds:
        sampler.calls_per_sample = calls[sampler]
    lengths = {s: max(1, round(turn_seconds / (seconds[s] * calls[s]))) for s in seconds}
    return [
        _Turns(s, length=max(lengths[other] for other in alike[s]), refill=seconds[s] < REFILL_LIMIT) for s in seconds
    ]


def _warm_up_rounds(turns: Sequence[_Turns], slow: Sequence[_Turns] = ()) -> int:
    """Rounds to drop at the start, so that no candidate is still warming up in those that stay.

    Each turn is seen beside the others of its round: what all candidates share cancels in the ratios, and
    dropping rounds for it would only lose data. Once a candidate rests, only the rounds before tell;
    of the slow one round stays in any case.
    """
    telling = [turn for turn in turns if turn not in slow] or turns
    rounds = min(len(turn.medians) for turn in telling)
    logs = np.log([turn.medians[:rounds] for turn in telling])  # (candidates, rounds)
    beside = np.exp(logs - logs.mean(axis=0))
    found = max(statistics.warm_up_length(candidate) for candidate in beside)
    return min(found, *(len(turn.medians) - 1 for turn in turns))


def _ratios(turns: Sequence[_Turns], dropped: int, margin: float) -> list[Ratio]:
    """A ratio for each pair of candidates, from the rounds that stay and in which both had a turn."""
    return [
        paired(one.sampler.name, other.sampler.name, *_of_both(one.medians[dropped:], other.medians[dropped:]), margin)
        for one, other in itertools.combinations(turns, 2)
    ]


def _of_both(one: Sequence[float], other: Sequence[float]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    rounds = min(len(one), len(other))
    return np.array(one[:rounds]), np.array(other[:rounds])


def paired(
    baseline: str,
    candidate: str,
    baseline_seconds: NDArray[np.float64],
    candidate_seconds: NDArray[np.float64],
    margin: float,
) -> Ratio:
    """The ratio and the verdict that rounds side by side give; both arrays of shape (rounds,), seconds per call."""
    estimate, low, high = statistics.paired_ratio(baseline_seconds, candidate_seconds, CONFIDENCE)
    enough = len(baseline_seconds) >= FEWEST_ROUNDS
    return Ratio(
        baseline=baseline,
        candidate=candidate,
        estimate=estimate,
        low=low,
        high=high,
        verdict=judge(Interval(estimate, low, high), margin) if enough else Verdict.TOO_NOISY,
    )


def _log_half_width(ratio: Ratio) -> float:
    return math.log(ratio.high / ratio.low) / 2


def _distance(ratio: Ratio) -> float:
    return abs(math.log(ratio.estimate))


def _doubts(rounds: int) -> tuple[Doubt, ...]:
    """What speaks against the comparison as a whole."""
    if rounds >= FEWEST_ROUNDS:
        return ()
    few = Doubt(
        name="few_rounds",
        words=f"only {rounds} rounds, fewer than {FEWEST_ROUNDS}",
        advice="there is no verdict; raise the time limit or compare smaller work",
    )
    return (few,)
