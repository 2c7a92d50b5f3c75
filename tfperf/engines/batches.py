"""Many rows, answered a batch at a time."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfperf.exports.signature import Signature, TensorForm

__all__ = ["batched", "first_batch", "in_batches"]


def in_batches(
    call: Callable[..., Sequence[NDArray[Any]]], signature: Signature, arrays: Sequence[NDArray[Any]], batch: int
) -> tuple[NDArray[Any], ...]:
    """The answers to all rows: outputs with a batch in front joined, others stacked.

    Args:
        call: from one array for each input, (batch, ...), to one for each output.
        arrays: one for each input; those with a batch in front have as many rows as there are, the last batch is
            filled up with the first rows, and the answers to these are dropped.
    """
    rows = max((len(array) for form, array in zip(signature.inputs, arrays, strict=True) if batched(form)), default=1)
    answers = [call(*_batch_of(signature, arrays, range(start, start + batch))) for start in range(0, rows, batch)]
    return tuple(
        np.concatenate(parts)[:rows] if batched(form) else np.stack(parts)
        for form, parts in zip(signature.outputs, zip(*answers, strict=True), strict=True)
    )


def first_batch(signature: Signature, arrays: Sequence[NDArray[Any]], batch: int) -> tuple[NDArray[Any], ...]:
    """The first batch of inputs, filled up with its own rows where there are too few."""
    return _batch_of(signature, arrays, range(batch))


def batched(form: TensorForm) -> bool:
    """Whether it has a batch in front."""
    return form.shape[:1] == (None,)


def _batch_of(signature: Signature, arrays: Sequence[NDArray[Any]], rows: range) -> tuple[NDArray[Any], ...]:
    return tuple(
        np.ascontiguousarray(array[np.arange(rows.start, rows.stop) % len(array)]) if batched(form) else array
        for form, array in zip(signature.inputs, arrays, strict=True)
    )
