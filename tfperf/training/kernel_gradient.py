"""The gradient of a convolution's kernel by AMX: oneDNN is slow at it."""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfperf.native.processor import has_amx
from tfperf.training import xla_function
from tfperf.training.gradients import gradients_by

__all__ = ["can_be_by_amx", "kernel_gradient"]

SOURCE = "kernel_gradient"


def can_be_by_amx() -> bool:
    """Whether `kernel_gradient` is there: the processor has AMX, and there is a C++ compiler and no GPU."""
    return has_amx() and xla_function.is_there(SOURCE)


def kernel_gradient(upstream: Any, inputs: Any, kernel: Any, padding: str) -> Any:
    """Sum the products of inputs and upstream gradients of a convolution with strides of 1, where `can_be_by_amx`.

    What is not finite may spread over all of the kernel's places, for its channel or its filter.

    Args:
        upstream: (batch, height', width', filters), bfloat16.
        inputs: (batch, height, width, channels), bfloat16; height and width are known.
        kernel: (kernel height, kernel width, channels, filters), bfloat16.
        padding: "same" or "valid".

    Returns:
        Of the shape of the kernel, bfloat16, rounded once, from sums in float32.
    """
    return _with_gradients(padding.upper())(upstream, inputs, kernel)[0]


@functools.cache
def _with_gradients(padding: str) -> Callable[..., Any]:
    @xla_function.compiled
    def by_amx(upstream: Any, inputs: Any, kernel: Any) -> list[Any]:
        above, left = (
            (upstream.shape[axis + 1] + kernel.shape[axis] - 1 - inputs.shape[axis + 1]) // 2 for axis in range(2)
        )
        form = tf.TensorSpec(kernel.shape, kernel.dtype)
        return xla_function.call("tfperf_kernel_gradient_bf16", [upstream, inputs], [form], above=above, left=left)

    return gradients_by(by_amx, functools.partial(tf.nn.conv2d, strides=1, padding=padding), first=1)
