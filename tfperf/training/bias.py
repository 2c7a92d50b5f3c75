"""Biases within what XLA compiles, whose gradients C++ sums: XLA's own sums of many rows are slow."""

import math
from typing import Any

import tensorflow as tf

from tfperf.training import xla_function
from tfperf.training.gradients import differentiable

__all__ = ["add_bias", "sum_rows"]

SOURCE = "bias"

MANY_NUMBERS = 2**15
"""Fewer are not worth the call."""


def add_bias(outputs: Any, bias: Any) -> Any:
    """Add a bias within what XLA compiles, with a gradient by `sum_rows`.

    Args:
        outputs: (..., columns), of any type.
        bias: (columns,), of the same type.

    Returns:
        (..., columns).
    """
    return _with_bias(outputs, bias) if _is_summed(outputs) else tf.add(outputs, bias)


def sum_rows(upstream: Any) -> Any:
    """Sum all rows, in float32 where C++ does it: of many numbers, with a C++ compiler, and without a GPU.

    Args:
        upstream: (..., columns), of any type.

    Returns:
        (columns,), of the same type.
    """
    if _is_summed(upstream):
        return _summed(tf.reshape(upstream, [-1, upstream.shape[-1]]))
    return tf.reduce_sum(upstream, list(range(upstream.shape.rank - 1)))


@xla_function.compiled
def _summed(rows: Any) -> Any:
    name = f"tfperf_bias_gradient_{xla_function.TYPES[rows.dtype.name]}"
    return xla_function.call(name, [rows], [tf.TensorSpec(rows.shape[1:], rows.dtype)])[0]


def _is_summed(numbers: Any) -> bool:
    if numbers.dtype.name not in xla_function.TYPES or not numbers.shape.is_fully_defined():
        return False
    return math.prod(numbers.shape) >= MANY_NUMBERS and xla_function.is_there(SOURCE)


def _gradients(upstream: Any, *_: Any) -> list[Any]:
    return [upstream, sum_rows(upstream)]


_with_bias = differentiable(tf.add, _gradients, tf.add)
