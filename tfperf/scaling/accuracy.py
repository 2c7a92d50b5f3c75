"""How many steps a larger batch saves, and how long training takes then: a range, as nobody knows it exactly."""

from tfperf.scaling.constants import CASES, Range
from tfperf.scaling.step import Prediction

__all__ = ["CRITICAL_BATCH", "seconds_to_accuracy", "steps_to_accuracy"]

CRITICAL_BATCH = Range.between(500.0, 8000.0)
"""Examples from which on a larger batch hardly saves steps, of nets that classify images: from 900 for SVHN to 8,000
for ImageNet in McCandlish et al., lower for small nets. The noise of gradients is doubted as a proxy for it
(arXiv 2505.23971), and Shallue et al. (1811.03600) found no rule that holds from one data set to the next."""


def steps_to_accuracy(batch: float, least_steps: float, critical_batch: float) -> float:
    """Return the steps to an accuracy with a batch: `least_steps * (1 + critical_batch / batch)`.

    Args:
        batch: examples of a step, of all workers.
        least_steps: steps that no batch, however large, goes below.
        critical_batch: examples at which twice as many steps are needed.

    Source: McCandlish, Kaplan, Amodei et al., An empirical model of large-batch training, arXiv 1812.06162.
    """
    return least_steps * (1 + critical_batch / batch)


def seconds_to_accuracy(
    prediction: Prediction, least_steps: float = 1.0, critical_batch: Range = CRITICAL_BATCH
) -> Range:
    """Return the seconds to an accuracy: steps times seconds of a step, from the slowest case to the fastest.

    Args:
        prediction: of the step.
        least_steps: 1 gives seconds for each of the steps that no batch goes below, enough for comparing.
        critical_batch: its range; a small one lets large batches save fewer steps.
    """
    batch = prediction.workload.batch * prediction.workers
    seconds = Range(prediction.slow, prediction.likely.seconds, prediction.fast)
    times = [steps_to_accuracy(batch, least_steps, critical_batch.at(case)) * seconds.at(case) for case in CASES]
    return Range(max(times), times[CASES.index("likely")], min(times))
