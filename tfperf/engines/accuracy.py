"""How often a net's largest answer is the right one."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfperf.errors import EngineError
from tfperf.exports.signature import Signature

__all__ = ["accuracy_of", "check_labels"]


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
