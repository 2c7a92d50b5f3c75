"""Products of matrices in bfloat16 within what XLA compiles: XLA's own convert them to float32."""

from typing import Any

import tensorflow as tf

from tfperf.native.processor import has_amx, multiplies_pairs
from tfperf.training import xla_function
from tfperf.training.gradients import differentiable

__all__ = ["can_multiply", "multiply"]


def can_multiply() -> bool:
    """Whether `multiply` is there: the processor multiplies in bfloat16, and there is a C++ compiler and no GPU."""
    source = _source()
    return source is not None and xla_function.is_there(source)


def _source() -> str | None:
    """What multiplies by AMX, or pairs of numbers where the processor has no AMX; None: it has neither."""
    if has_amx():
        return "matmul"
    return "paired_products" if multiplies_pairs() else None


def multiply(first: Any, second: Any) -> Any:
    """Multiply two matrices where `can_multiply`, within what XLA compiles; their gradients are such products too.

    Args:
        first: (rows, inner), bfloat16; the sizes are known.
        second: (inner, columns), bfloat16.

    Returns:
        (rows, columns), bfloat16, rounded once, from sums in float32.
    """
    return _multiplied(first, second)


def _product(first: Any, second: Any, *, transposed_first: bool = False, transposed_second: bool = False) -> Any:
    """The product; either matrix may lie transposed in memory: (inner, rows), (columns, inner)."""
    rows, columns = first.shape[1 if transposed_first else 0], second.shape[0 if transposed_second else 1]
    form = tf.TensorSpec([rows, columns], tf.bfloat16)
    settings = {"transposed_first": int(transposed_first), "transposed_second": int(transposed_second)}
    return xla_function.call(f"tfperf_{_source()}_bf16", [first, second], [form], **settings)[0]


def _gradients(upstream: Any, first: Any, second: Any) -> list[Any]:
    return [_product(upstream, second, transposed_second=True), _product(first, upstream, transposed_first=True)]


_multiplied = differentiable(_product, _gradients, tf.matmul)
