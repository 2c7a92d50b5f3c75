"""Does a runner answer what the net answers, and how often is its largest answer the right one?"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfperf.engines.plan import Precision
from tfperf.engines.runner import Runner
from tfperf.errors import EngineError
from tfperf.exports.signature import Signature
from tfperf.measure.agreement import Agreement, check_agreement

__all__ = ["TOLERANCES", "WrongAnswersError", "accuracy_of", "check_labels", "check_runner", "check_same_top1"]

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
        same_top1: whether the largest answer of each row must be the same, where an output has several floating numbers
            along its last axis; otherwise the agreement's `same_top1_share` is None.

    Raises:
        WrongAnswersError: an error beyond the tolerance, another largest answer, another shape, NaN or infinity.
        MeasurementError: the reference itself is not finite.
        ValueError: the net does not take these inputs.
    """
    limit = TOLERANCES[runner.plan.precision] if tolerance is None else tolerance
    names = [form.name for form in runner.signature.outputs]
    outputs = runner(*inputs) if batch is None else runner.signature.in_batches(runner, inputs, batch)
    answers = dict(zip(names, outputs, strict=True))
    agreement = check_agreement(str(runner.plan), answers, dict(zip(names, reference, strict=True)), limit)
    if not agreement.passed:
        raise WrongAnswersError(f"wrong answers: {agreement}")
    share = agreement.same_top1_share
    if same_top1 and share is not None and share < 1:
        least = math.floor(share * 1e3 + 1e-6) / 10  # one row of many is not all of them
        raise WrongAnswersError(f"wrong answers: the largest is the same in {least}% of rows")
    return agreement


def check_same_top1(signature: Signature) -> None:
    """Refuse to compare the largest answers of a net that has none: no output has several floating numbers in a row.

    Raises:
        ValueError: names the outputs.
    """
    for form in signature.outputs:
        in_rows = len(form.shape) > form.batched and form.shape[-1] not in (0, 1)  # others are stacked, a row each
        if in_rows and "float" in form.dtype:
            return
    outputs = "; ".join(map(str, signature.outputs))
    raise ValueError(f"expected an output with several scores in a row, to compare the largest. Received: {outputs}")


def accuracy_of(answers: Sequence[NDArray[Any]], labels: Sequence[NDArray[Any]]) -> float:
    """The share of rows whose largest answer is the label, over all outputs that have labels.

    Args:
        answers: one array for each output, (rows, ..., classes).
        labels: one array for each output, whole numbers of shape (rows, ...); empty: the output has none.

    Raises:
        EngineError: an answer is NaN or infinite.
    """
    found = []
    for answer, label in zip(answers, labels, strict=True):
        if not np.isfinite(answer).all():
            raise EngineError("expected finite answers to the labelled inputs. Received: NaN or infinity")
        if label.size:
            found.append(answer.argmax(axis=-1) == label)
    return float(np.mean(np.concatenate([one.ravel() for one in found])))


def check_labels(labels: Sequence[NDArray[Any]], signature: Signature, rows: int) -> None:
    """Refuse labels that are no classes of these outputs.

    Raises:
        ValueError: names the first output, and what its labels must be.
    """
    for form, label in zip(signature.outputs, labels, strict=True):
        classes = form.shape[-1] if len(form.shape) > 1 else None
        if not label.size:
            continue
        if classes is None or classes < 2:
            raise ValueError(
                f"expected an output with a score for each of several classes. Received: labels for {form}"
            )
        wanted = form.model_copy(update={"shape": (rows, *form.shape[1:-1]), "dtype": str(label.dtype)})
        if label.dtype.kind not in "iu" or not wanted.takes(label):
            raise ValueError(
                f"expected whole numbers {wanted.shape} as labels of {form}. Received: {label.shape} of {label.dtype}"
            )
        if label.min() < 0 or label.max() >= classes:
            raise ValueError(
                f"expected labels from 0 to {classes - 1} for {form}. Received: {label.min()} to {label.max()}"
            )
    if not any(label.size for label in labels):
        raise ValueError("expected labels of one output at least. Received: none")
