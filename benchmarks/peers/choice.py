"""What tfperf chooses for a net."""

from collections.abc import Sequence

from benchmarks.peers.subject import Subject
from tfperf import tune
from tfperf.engines import Plan
from tfperf.engines.plan import Precision

__all__ = ["choose"]


def choose(subject: Subject, precisions: Sequence[Precision], tolerance: float) -> Plan:
    """The fastest plan at batch 1 with these precisions that answers within the tolerance.

    Args:
        tolerance: largest relative error of an answer, in every precision.

    Raises:
        SearchError: there is none.
    """
    tuned = tune(subject.origin.model, subject.inputs, precisions=precisions, tolerance=tolerance, batch=1, fresh=True)
    tuned.forget()
    return tuned.best.plan
