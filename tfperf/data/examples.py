"""The examples of an input pipeline, to compare with those of another."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["sorted_examples"]


def sorted_examples(batches: Iterable[tuple[Any, Any]]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Read all batches, and put the examples into an order that does not depend on the order they came in.

    Two pipelines that give the same examples, in whatever order and batches, give equal arrays.

    Args:
        batches: a `tf.data.Dataset`, or any iterable, of inputs (batch, ...) and labels (batch,).

    Returns:
        Inputs (n, ...), sorted by their bytes, and their labels (n,).

    Raises:
        ValueError: there is no batch.
    """
    parts = [(np.asarray(inputs), np.asarray(labels)) for inputs, labels in batches]
    if not parts:
        raise ValueError("expected at least one batch. Received: none")
    inputs, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    order = sorted(range(len(inputs)), key=lambda number: (inputs[number].tobytes(), labels[number].tobytes()))
    return inputs[order], labels[order]
