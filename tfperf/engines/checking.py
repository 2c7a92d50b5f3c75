"""Does a runner answer what the net answers?"""

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from tfperf.engines.batches import in_batches
from tfperf.engines.plan import Precision
from tfperf.engines.runner import Runner
from tfperf.errors import EngineError
from tfperf.measure.agreement import Agreement, check_agreement

__all__ = ["TOLERANCES", "WrongAnswersError", "check_runner"]

TOLERANCES: Mapping[Precision, float] = {
    "float32": 1e-4,
    "float16": 1e-2,
    "bfloat16": 5e-2,
    "int8": 1e-1,
    "int8_static": 1e-1,
}
"""Precision -> largest error of an output as a share of the largest output. float32 adds up in another order in each
engine; of the others each is about ten times what one layer rounds."""


class WrongAnswersError(EngineError):
    """A runner gives other outputs than its net."""


def check_runner(
    runner: Runner,
    inputs: Sequence[NDArray[Any]],
    reference: Sequence[NDArray[Any]],
    tolerance: float | None = None,
    *,
    batch: int | None = None,
    same_top1: bool = False,
) -> Agreement:
    """Compare a runner's answers with those of the net in float32, run eagerly (`Servable.reference`).

    Args:
        inputs: one array for each input of the signature, (rows, ...).
        reference: one array for each output, (rows, ...).
        tolerance: largest relative error that passes; None: that of the plan's precision, from `TOLERANCES`.
        batch: rows a call; None: all at once.
        same_top1: whether the largest answer of each row must be the same, where an output has rows of answers.

    Raises:
        WrongAnswersError: an error beyond the tolerance, another largest answer, another shape, NaN or infinity.
        MeasurementError: the reference itself is not finite.
        ValueError: the net does not take these inputs.
    """
    limit = TOLERANCES[runner.plan.precision] if tolerance is None else tolerance
    names = [form.name for form in runner.signature.outputs]
    outputs = runner(*inputs) if batch is None else in_batches(runner, runner.signature, inputs, batch)
    answers = dict(zip(names, outputs, strict=True))
    agreement = check_agreement(str(runner.plan), answers, dict(zip(names, reference, strict=True)), limit)
    if not agreement.passed:
        raise WrongAnswersError(f"wrong answers: {agreement}")
    if same_top1 and agreement.same_top1_share not in (None, 1.0):
        raise WrongAnswersError(f"wrong answers: the largest is the same in {agreement.same_top1_share:.1%} of rows")
    return agreement
