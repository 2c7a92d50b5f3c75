"""What tfperf chooses for a net. To be replaced: `choose` does by hand what `tfperf.tune` is for."""

from collections.abc import Sequence

from benchmarks.peers.subject import Subject
from tfperf.cores import usable_cores
from tfperf.engines import ENGINES, Plan
from tfperf.engines.plan import Precision
from tfperf.engines.survey import survey
from tfperf.engines.trial import median_seconds
from tfperf.errors import EngineError

__all__ = ["choose"]

LOOKED_AT = ("litert", "onnx", "openvino", "xla_aot")
"""Engines; the others have not been the fastest on any net here."""


def choose(subject: Subject, precisions: Sequence[Precision], tolerance: float, seconds: float) -> Plan:
    """The fastest plan at batch 1 with these precisions that answers within the tolerance.

    TODO(tune): `tune(model, inputs, precisions=..., tolerance=...).best` in place of all of this.

    Args:
        tolerance: largest relative error of an answer, in every precision.
        seconds: of measuring.

    Raises:
        EngineError: there is none.
    """
    plans = [
        Plan(engine=engine.name, precision=precision, threads=threads, batch=1 if engine.fixed_batch else None)
        for engine in ENGINES
        if engine.name in LOOKED_AT
        for precision in precisions
        if precision in engine.precisions
        for threads in sorted({1, usable_cores()})
    ]
    (looked,) = survey(
        subject.servable,
        subject.origin,
        {1: plans},
        {1: [subject.inputs]},
        tolerance=tolerance,
        time_limit=seconds,
    )
    if not looked.ran:
        reasons = "; ".join(f"{trial.name}: {trial.reason}" for trial in looked.trials)
        raise EngineError(f"no plan runs {subject.name}: {reasons}")
    return min(looked.ran, key=median_seconds).plan
