"""Dense layers in float32 within what XLA compiles: what is behind the product is part of it."""

import functools
import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfperf.native.processor import level_of_cpu
from tfperf.training import xla_function
from tfperf.training.bias import sum_rows
from tfperf.training.gradients import as_dense, gradients_by

__all__ = ["can_multiply_rows", "multiply_rows"]

SOURCE = "dense"

LEVEL = "x86-64-v3"
"""The level of processors on which C++ was measured to be faster than XLA: those with AVX2 alone."""

FEWEST_ROWS = 256
"""Rows with which C++ begins to be faster than XLA's own products, for a kernel that is not large."""

MANY_ROWS = 1024
"""Rows that are worth the packing of any kernel."""

LARGE_KERNEL = 2**18
"""More numbers than these are not packed for fewer rows: they would not stay in a core's cache."""

FEWEST_COLUMNS = 16
"""Sides of a kernel below which most of a register would be idle."""


def can_multiply_rows(rows: Any, kernel: Any) -> bool:
    """Whether `multiply_rows` takes such matrices, and is there: the processor has AVX2 alone, and there is a compiler.

    Args:
        rows, kernel: tensors of any types and shapes.
    """
    if not rows.dtype == kernel.dtype == tf.float32 or not len(rows.shape) == len(kernel.shape) == 2:
        return False
    known = rows.shape.is_fully_defined() and kernel.shape.is_fully_defined()
    if not known or rows.shape[0] < FEWEST_ROWS or min(kernel.shape) < FEWEST_COLUMNS:
        return False
    if rows.shape[0] < MANY_ROWS and math.prod(kernel.shape) > LARGE_KERNEL:
        return False
    return level_of_cpu() == LEVEL and xla_function.is_there(SOURCE)


def multiply_rows(rows: Any, kernel: Any, bias: Any, *, relu: bool = False) -> Any:
    """Multiply by a kernel, add a bias, and cut off what is below 0, where `can_multiply_rows`.

    Args:
        rows: (rows, inner), float32; the sizes are known.
        kernel: (inner, columns), float32.
        bias: (columns,), float32.
        relu: whether to cut off.

    Returns:
        (rows, columns), float32.
    """
    return _product(relu)(rows, kernel, bias)


@functools.cache
def _product(relu: bool) -> Callable[..., Any]:
    def formulas(rows: Any, kernel: Any, bias: Any) -> Any:
        outputs = tf.nn.bias_add(tf.matmul(rows, kernel), bias)
        return tf.nn.relu(outputs) if relu else outputs

    def forward(rows: Any, kernel: Any, bias: Any) -> Any:
        form = tf.TensorSpec([rows.shape[0], kernel.shape[1]], rows.dtype)
        return xla_function.call("tfperf_dense_f32", [rows, kernel, bias], [form], relu=int(relu))[0]

    def backward(upstream: Any, outputs: Any, rows: Any, kernel: Any, _: Any) -> list[Any]:
        if relu:
            upstream = tf.where(outputs > 0, upstream, tf.zeros_like(upstream))
        form = tf.TensorSpec(kernel.shape, kernel.dtype)
        of_kernel = xla_function.call("tfperf_dense_kernel_gradient_f32", [rows, upstream], [form])[0]
        return [tf.matmul(upstream, kernel, transpose_b=True), of_kernel, sum_rows(upstream)]

    gradients_of = gradients_by(backward, lambda _, *operands: formulas(*operands), first=1)

    def product(*operands: Any) -> Any:
        # Nobody differentiates what is within: XLA's calls have no gradients
        outputs = forward(*map(tf.stop_gradient, operands))

        def gradients(upstream: Any) -> Any:
            return gradients_of(as_dense(upstream, outputs), tf.stop_gradient(outputs), *operands)

        return outputs, gradients

    differentiable: Callable[..., Any] = tf.custom_gradient(product)
    return differentiable
