"""What "better" means for each objective."""

from collections.abc import Mapping, Sequence

import numpy as np

from tfperf.measure import Comparison, Measurement, Ratio, Verdict
from tfperf.measure.comparison import paired
from tfperf.search.question import Objective, Question
from tfperf.trials.trial import Status, Trial

__all__ = ["BANDS", "cost", "costs_in", "pareto_front", "per_example", "told_faster", "undisturbed", "within_limits"]

UNDISTURBED = 10
"""Percentile of its samples by which a plan is judged: what disturbs one and not the next only adds to times."""

BANDS: Mapping[Objective, float] = {"latency": 0.0, "throughput": 0.0, "size": 0.01, "memory": 0.05}
"""Share by which two plans may differ and still count as equal in an objective, before times decide. Times bring
their own intervals; memory differs that much from process to process."""


def cost(trial: Trial, objective: Objective, seconds: float | None = None) -> float:
    """What is to be small; infinite for a plan that did not run, or that loads nothing from disk where size counts.

    Args:
        seconds: of a call, where they are better known than from the trial's own measurement.
    """
    if trial.status is not Status.RAN or trial.measurement is None:
        return float("inf")
    if objective == "size":
        return float("inf") if trial.size is None else float(trial.size)
    if objective == "memory":
        return float(max(1, trial.memory or 0))  # costs are compared as ratios
    median = trial.measurement.median if seconds is None else seconds
    return median / trial.batch if objective == "throughput" else median


def costs_in(comparison: Comparison | None) -> dict[str, float]:
    """Seconds of a call, by name, as a comparison found them."""
    return {one.name: one.median for one in comparison.measurements} if comparison else {}


def undisturbed(measurement: Measurement) -> float:
    """Seconds of a call that nothing came between: a low percentile of the samples."""
    return float(np.percentile(measurement.samples, UNDISTURBED))


def within_limits(trial: Trial, question: Question, seconds: float | None = None) -> bool:
    """Whether a plan ran, and keeps to the latency that was asked for."""
    latency = cost(trial, "latency", seconds)
    return latency < float("inf") and latency <= (question.latency_limit or float("inf"))


def pareto_front(costs: Mapping[str, Sequence[float]]) -> tuple[str, ...]:
    """Those that no other surpasses: as good in every objective, and better in one.

    Args:
        costs: name -> what is to be small, one value for each objective, in one order.
    """
    rows = {name: np.array(values) for name, values in costs.items()}
    return tuple(
        name
        for name, mine in rows.items()
        if np.isfinite(mine).all()
        and not any((other <= mine).all() and (other < mine).any() for other in rows.values())
    )


def per_example(comparison: Comparison, batches: Mapping[str, int]) -> Comparison:
    """The comparison with ratios and verdicts of seconds an example, in place of seconds a call.

    Args:
        batches: name -> batch size. Where all are alike, nothing changes.
    """
    if len(set(batches.values())) == 1:
        return comparison
    return comparison.model_copy(
        update={"ratios": tuple(_per_example(comparison, ratio, batches) for ratio in comparison.ratios)}
    )


def _per_example(comparison: Comparison, ratio: Ratio, batches: Mapping[str, int]) -> Ratio:
    baseline, candidate = (comparison[name].turns / batches[name] for name in (ratio.baseline, ratio.candidate))
    rounds = min(len(baseline), len(candidate))
    return paired(ratio.baseline, ratio.candidate, baseline[:rounds], candidate[:rounds], comparison.margin)


def told_faster(comparison: Comparison, candidate: str, other: str) -> bool:
    """Whether a comparison says that one is faster than the other."""
    return comparison.ratio(other, candidate).verdict is Verdict.FASTER
