"""Which is faster, and by how much: candidates measured side by side, interleaved, in one run."""

import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from tfperf.measure import statistics
from tfperf.measure.clock import Clock, Synchronizer, wall_clock
from tfperf.measure.comparison import FEWEST_ROUNDS, MARGIN, Comparison, Ratio, Verdict, paired
from tfperf.measure.environment import Environment, Watch
from tfperf.measure.measurement import Doubt, Stop
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

__all__ = ["Candidate", "compare", "plan_turns", "warm_up_rounds"]

TIME_LIMIT = 20.0
"""Seconds for all candidates together; their first calls come before and are not counted."""

MIN_ROUNDS = 20
"""Rounds before the ratios are believed, unless the time is up."""

TURN_SECONDS = 0.005
"""What a candidate measures before the next one's turn: long beside what changing over costs."""

PLANNING_LOOKS = 5
"""Samples whose median decides how long a candidate's turns are: one alone may be a spike."""

REFILL_LIMIT = 0.05
"""Work shorter than this many seconds is called once untimed at the start of each turn: it finds the caches
full of another candidate's data, and in use it would not."""

MOST_ROUNDS = 2000
"""Most rounds: the estimate looks at every pair of rounds."""

PATIENCE = 3
"""Times the time limit in which the fewest rounds may be taken that tell anything: on a machine that others use, too,
work may suddenly take several times as long."""

FINEST_SHARE = 1 / 50
"""A ratio need not be known better than to this share of its own distance from 1."""

RESTING_SHARE = 1 / 10
"""The same where the question is which is the fastest: that it is another is then beyond doubt."""


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
    patient: bool = False,
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
            a turn in every round. It is `patient`, too.
        patient: the fewest rounds that give a verdict may take up to three times the time limit.
        clock: returns seconds.
        synchronize: waits for the devices before each reading; None: found from what is loaded.
        seed: of the random order; None: another one each time.
        on_progress: called now and then, outside the samples.

    Raises:
        MeasurementError: the clock does not move.
        ValueError: fewer than two candidates, or a limit that is not positive.
    """
    check_limits(margin=margin, time_limit=time_limit, min_rounds=min_rounds, turn_seconds=turn_seconds)
    if len(candidates) < 2:
        raise ValueError(f"expected at least two candidates to compare. Received: {', '.join(candidates) or 'none'}")
    environment, watch, began = Environment.here(), Watch(), clock()
    warm_up_seconds = min(WARM_UP_SECONDS, time_limit / (4 * len(candidates)))
    compared = [
        Candidate(Sampler(name, function, args, kwargs, clock=clock, synchronize=synchronize), warm_up_seconds)
        for name, function in candidates.items()
    ]
    began += sum(one.sampler.first_call_seconds for one in compared)
    plan_turns(compared, turn_seconds)
    limits = Limits(margin, time_limit, min_rounds, rest_after, patient or rest_after is not None)
    rounds = Rounds(compared, limits, random.Random(seed))
    while rounds.stopped is None:
        rounds.take(lambda: clock() - began, on_progress)
    conditions = watch.conditions()
    return Comparison(
        measurements=tuple(
            one.sampler.measurement(
                one.samples,
                dropped=rounds.dropped,
                samples_per_turn=one.length,
                precision=margin,
                stopped=rounds.stopped,
                environment=environment,
                conditions=conditions,
            )
            for one in compared
        ),
        ratios=tuple(rounds.ratios()),
        rounds=rounds.kept,
        margin=margin,
        stopped=rounds.stopped,
        doubts=_doubts(rounds.kept),
    )


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


class Candidate:
    """One of those compared, and its turns.

    Attributes:
        sampler: of its work.
        length: samples in a turn.
        call_seconds: about what a call takes.
        samples: seconds per call, whole turns, in order.
        medians: of each turn.
        spent: seconds on it so far.
    """

    def __init__(self, sampler: Sampler, warm_up_seconds: float) -> None:
        """Warm up; `plan_turns` decides how long the turns are."""
        self.sampler, self.length = sampler, 1
        self.samples: list[float] = []
        self.medians: list[float] = []
        start = sampler.clock()
        self.call_seconds = sampler.calibrate(warm_up_seconds)
        self.spent = sampler.clock() - start

    @property
    def name(self) -> str:
        """The name of its measurement."""
        return self.sampler.name

    @property
    def full(self) -> bool:
        """Whether one more turn would be more samples than are kept."""
        return len(self.samples) + self.length > SAMPLE_LIMIT

    def look(self) -> None:
        """See again how long a call takes: the calibration may have met a spike."""
        if self.call_seconds < REFILL_LIMIT:  # longer work has turns of one sample whatever it is
            self.call_seconds = median(self.sampler.sample() for _ in range(PLANNING_LOOKS))

    def take(self) -> None:
        """Have one turn."""
        start = self.sampler.clock()
        if self.call_seconds < REFILL_LIMIT:
            self.sampler.call()
        samples = [self.sampler.sample() for _ in range(self.length)]
        self.samples.extend(samples)
        self.medians.append(median(samples))
        self.spent += self.sampler.clock() - start


def plan_turns(candidates: Sequence[Candidate], seconds: float) -> None:
    """Make turns about so many seconds long, with as many calls and samples for all candidates of like speed.

    The median of two skewed samples is their mean and lies higher than the median of ten, so turns of
    different lengths would tell equal work apart.
    """
    for one in candidates:
        one.look()
    alike = [[other for other in candidates if 0.5 < other.call_seconds / one.call_seconds < 2] for one in candidates]
    calls = [max(other.sampler.calls_per_sample for other in group) for group in alike]
    for one, number in zip(candidates, calls, strict=True):
        one.sampler.calls_per_sample = number
        one.length = max(1, round(seconds / (one.call_seconds * number)))
    lengths = [max(other.length for other in group) for group in alike]
    for one, length in zip(candidates, lengths, strict=True):
        one.length = length


def warm_up_rounds(candidates: Sequence[Candidate], slow: Sequence[Candidate] = ()) -> int:
    """Rounds to drop at the start, so that no candidate is still warming up in those that stay.

    Each turn is seen beside the others of its round: what all candidates share cancels in the ratios, and
    dropping rounds for it would only lose data. Once a candidate rests, only the rounds before tell;
    of the slow one round stays in any case.
    """
    telling = [one for one in candidates if one not in slow] or candidates
    rounds = min(len(one.medians) for one in telling)
    logs = np.log([one.medians[:rounds] for one in telling])  # (candidates, rounds)
    beside = np.exp(logs - logs.mean(axis=0))
    found = max(statistics.warm_up_length(candidate) for candidate in beside)
    return min(found, *(len(one.medians) - 1 for one in candidates))


class Limits(NamedTuple):
    """When rounds end; what each means is said by `tfperf.measure.compare`."""

    margin: float
    time_limit: float
    min_rounds: int
    rest_after: int | None
    patient: bool

    @property
    def first_look(self) -> int:
        """Rounds before any ratio is believed."""
        return self.min_rounds if self.rest_after is None else max(FEWEST_ROUNDS, self.rest_after)


class Rounds:
    """Rounds of turns in random order, until the ratios are known.

    Attributes:
        dropped: rounds at the start that are warm-up, as far as is known.
        stopped: why there are no more rounds; None: there are.
    """

    def __init__(self, candidates: Sequence[Candidate], limits: Limits, order: random.Random) -> None:
        """Take no turn yet."""
        self._all, self._limits, self._order = candidates, limits, order
        self._active = list(candidates)
        self._slow = [one for one in candidates if FEWEST_ROUNDS * one.call_seconds > limits.time_limit]
        self._fair = limits.time_limit / len(candidates)
        self._taken, self._next_look = 0, limits.first_look
        self._half_widths: list[tuple[int, float]] = []
        self.dropped = 0
        self.stopped: Stop | None = None

    @property
    def kept(self) -> int:
        """Rounds that are not warm-up."""
        return self._taken - self.dropped

    def ratios(self) -> list[Ratio]:
        """A ratio for each pair of candidates, from the rounds that stay and in which both had a turn."""
        pairs = itertools.combinations(self._all, 2)
        return [_ratio(one, other, self.dropped, self._limits.margin) for one, other in pairs]

    def take(self, spent: Callable[[], float], on_progress: Callable[[Progress], None] | None) -> None:
        """One more round; then see whether it was the last.

        Args:
            spent: seconds of all rounds together, with what came before and counts.
        """
        for one in self._order.sample(self._active, len(self._active)):
            one.take()
        self._taken += 1
        seconds = spent() - sum(max(0.0, one.spent - self._fair) for one in self._slow)
        if self._taken >= self._next_look and seconds >= MIN_SECONDS:
            self._next_look = math.ceil(self._taken * LOOK_GROWTH)
            self._look(seconds, on_progress)
        self._active = [one for one in self._active if one not in self._slow or one.spent < self._fair]
        if self.stopped is None and (self._time_is_up(seconds) or len(self._active) < 2):
            self.stopped = Stop.TIME_LIMIT
        if self.stopped is None and (self._taken >= MOST_ROUNDS or any(one.full for one in self._all)):
            self.stopped = Stop.SAMPLE_LIMIT
        if self.stopped is not None:
            self.dropped = warm_up_rounds(self._all, self._slow)

    def _time_is_up(self, seconds: float) -> bool:
        """The fewest rounds that tell anything may take longer; those of warm-up tell nothing."""
        if self._limits.patient and self._limits.time_limit <= seconds < PATIENCE * self._limits.time_limit:
            return self._taken - warm_up_rounds(self._all, self._slow) >= FEWEST_ROUNDS
        return seconds >= self._limits.time_limit

    def _look(self, seconds: float, on_progress: Callable[[Progress], None] | None) -> None:
        """See what the ratios are, whether they are known, and who need not have another turn."""
        self.dropped = warm_up_rounds(self._all, self._slow)
        ratios = self._asked()
        vague = [ratio for ratio in ratios if self._is_vague(ratio)]
        half_width = max(_log_half_width(ratio) for ratio in vague or ratios)
        self._half_widths.append((self.kept, half_width))
        if on_progress:
            on_progress(Progress(self._taken, seconds, self._limits.time_limit, half_width))
        if self.kept >= self._limits.first_look:
            self.stopped = reason_to_stop(not vague, self._half_widths)
            if self.stopped is Stop.NOISE_FLOOR and any(
                ratio.verdict in (Verdict.TOO_NOISY, Verdict.TOO_FEW) for ratio in ratios
            ):
                self.stopped = None  # an answer is worth the rest of the time
        if self._limits.rest_after is not None and vague:
            self._active = [one for one in self._active if any(one.name in ratio.names for ratio in vague)]

    def _asked(self) -> list[Ratio]:
        """The ratios that are to be known: all, or those to the fastest."""
        ratios = self.ratios()
        if self._limits.rest_after is None:
            return ratios
        fastest = min(self._active, key=lambda one: median(one.medians[self.dropped :])).name
        return [ratio for ratio in ratios if fastest in ratio.names]

    def _is_vague(self, ratio: Ratio) -> bool:
        """Half the margin tells a difference of the margin from none; far from 1 less will do."""
        share = FINEST_SHARE if self._limits.rest_after is None else RESTING_SHARE
        return _log_half_width(ratio) > max(self._limits.margin / 2, share * abs(math.log(ratio.estimate)))


def _ratio(one: Candidate, other: Candidate, dropped: int, margin: float) -> Ratio:
    both = slice(dropped, min(len(one.medians), len(other.medians)))
    return paired(one.name, other.name, np.array(one.medians[both]), np.array(other.medians[both]), margin)


def _log_half_width(ratio: Ratio) -> float:
    return math.log(ratio.high / ratio.low) / 2
