"""Candidates of a comparison, each with the turns that it has had, and how long these are."""

from collections.abc import Sequence

import numpy as np

from tfperf.measure import statistics
from tfperf.measure.sampling import SAMPLE_LIMIT, Sampler

__all__ = ["Candidate", "plan_turns", "warm_up_rounds"]

PLANNING_LOOKS = 5
"""Samples whose median decides how long a candidate's turns are: one alone may be a spike."""

REFILL_LIMIT = 0.05
"""Work shorter than this many seconds is called once untimed at the start of each turn: it finds the caches
full of another candidate's data, and in use it would not."""


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
            self.call_seconds = float(np.median([self.sampler.sample() for _ in range(PLANNING_LOOKS)]))

    def take(self) -> None:
        """Have one turn."""
        start = self.sampler.clock()
        if self.call_seconds < REFILL_LIMIT:
            self.sampler.call()
        samples = [self.sampler.sample() for _ in range(self.length)]
        self.samples.extend(samples)
        self.medians.append(float(np.median(samples)))
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
