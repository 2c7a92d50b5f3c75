"""Rounds in which candidates have turns: who is in the next one, what they tell, and when there have been enough."""

import itertools
import math
import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from tfperf.measure.candidates import Candidate, warm_up_rounds
from tfperf.measure.comparison import FEWEST_ROUNDS, Ratio, Verdict, paired
from tfperf.measure.measurement import Stop
from tfperf.measure.sampling import LOOK_GROWTH, MIN_SECONDS, Progress, reason_to_stop

__all__ = ["Limits", "Rounds"]

MOST_ROUNDS = 2000
"""Most rounds: the estimate looks at every pair of rounds."""

PATIENCE = 3
"""Times the time limit in which the fewest rounds may be taken that tell which is the fastest: on a machine that others
use, too, work may suddenly take several times as long."""

FINEST_SHARE = 1 / 50
"""A ratio need not be known better than to this share of its own distance from 1."""

RESTING_SHARE = 1 / 10
"""The same where the question is which is the fastest: that it is another is then beyond doubt."""


class Limits(NamedTuple):
    """When rounds end; what each means is said by `tfperf.measure.compare`."""

    margin: float
    time_limit: float
    min_rounds: int
    rest_after: int | None = None

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
        """Where it is asked which is the fastest, the fewest rounds that tell anything may take longer."""
        few = self._limits.rest_after is not None and self._taken < FEWEST_ROUNDS
        return seconds >= self._limits.time_limit * (PATIENCE if few else 1)

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
        fastest = min(self._active, key=lambda one: float(np.median(one.medians[self.dropped :]))).name
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
