"""Has it become slower? Two result files, made at different times, held against each other."""

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from tfperf.errors import MeasurementError
from tfperf.measure import statistics
from tfperf.measure.comparison import CONFIDENCE
from tfperf.measure.results import Result
from tfperf.measure.statistics import Interval

__all__ = ["RegressionVerdict", "TimeChange", "changes_between", "overall"]

THRESHOLD = 0.02
"""A slowdown up to this share is not called a regression."""

BETWEEN_RUNS = 0.01
"""Standard deviation between processes that run the same code, as a share of the median.

Memory layout, page placement and neighbours differ from process to process, and one run cannot see it.
It stands in for what is not known until a side has three runs of its own.
"""


class RegressionVerdict(StrEnum):
    """Whether one piece of work has become slower."""

    REGRESSION = "regression"
    NO_REGRESSION = "no regression"
    TOO_NOISY = "too noisy to say"


class TimeChange(NamedTuple):
    """One piece of work, before and after. The ratios are time after by time before: above 1 is slower."""

    name: str
    seen: Interval
    """With the noise that the files show."""
    allowed: Interval
    """With what differs from process to process as well, also where the files do not show it."""
    threshold: float

    @property
    def verdict(self) -> RegressionVerdict:
        """An alarm must hold in spite of what one run cannot see; an all-clear is what the files show."""
        limit = 1 + self.threshold
        if self.allowed.low > limit:
            return RegressionVerdict.REGRESSION
        return RegressionVerdict.NO_REGRESSION if self.seen.high <= limit else RegressionVerdict.TOO_NOISY


def changes_between(before: Result, after: Result, threshold: float = THRESHOLD) -> list[TimeChange]:
    """The change of every measurement that both files have, by name.

    Several measurements of one name in a file are runs of the same work; with three or more on a side
    the differences between its runs are measured, not assumed.

    Args:
        threshold: share by which the time may grow.

    Raises:
        MeasurementError: the files have no name in common.
    """
    old, new = before.runs, after.runs
    common = [name for name in old if name in new]
    if not common:
        raise MeasurementError(
            f"expected a measurement that both files have; before has {_names(old)}, after has {_names(new)}"
        )
    changes = []
    for name in common:
        after_runs, before_runs = [run.turns for run in new[name]], [run.turns for run in old[name]]
        seen = statistics.unpaired_ratio(after_runs, before_runs, CONFIDENCE)
        allowed = statistics.unpaired_ratio(after_runs, before_runs, CONFIDENCE, BETWEEN_RUNS)
        changes.append(TimeChange(name, seen, allowed, threshold))
    return changes


def overall(changes: list[TimeChange]) -> RegressionVerdict:
    """The worst verdict among them: one regression is a regression, and else one doubt is a doubt."""
    gravest_first = (RegressionVerdict.REGRESSION, RegressionVerdict.TOO_NOISY, RegressionVerdict.NO_REGRESSION)
    verdicts = {change.verdict for change in changes}
    return next(verdict for verdict in gravest_first if verdict in verdicts)


def _names(runs: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in runs) or "none"
