"""Convolutions of few channels, as the first of a net: the gradients of their weights in one pass."""

import functools
import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfperf.training import xla_function
from tfperf.training.gradients import gradients_by, with_gradient

__all__ = ["convolve_few", "is_for_few"]

SOURCE = "few_channels"

FEW_CHANNELS, FEW_WEIGHTS = 4, 27
"""What images have at most, and a kernel of 3 x 3 for three of them: weights for each filter. From larger kernels on
oneDNN is faster."""


def is_for_few(inputs: Any, kernel_size: tuple[int, int]) -> bool:
    """Whether `convolve_few` is there and worth it for inputs (batch, height, width, channels) and a kernel."""
    channels = inputs.shape[-1]
    few = channels <= FEW_CHANNELS and math.prod(kernel_size) * channels <= FEW_WEIGHTS
    return few and inputs.dtype.name in xla_function.TYPES and xla_function.is_there(SOURCE)


def convolve_few(
    inputs: Any, kernel: Any, bias: Any, strides: tuple[int, int], padding: str, *, relu: bool = False
) -> Any:
    """Convolve, add a bias, and cut off what is below 0, with the gradients of kernel and bias by one pass in C++.

    Args:
        inputs: (batch, height, width, channels), float32 or bfloat16; height and width are known.
        kernel: (kernel height, kernel width, channels, filters), of the same type.
        bias: (filters,), of the same type; None: none.
        strides: of height and width.
        padding: "same" or "valid".
        relu: whether to cut off.

    Returns:
        (batch, height', width', filters).
    """
    offset = tf.zeros(kernel.shape[-1:], kernel.dtype) if bias is None else bias
    return _convolution(tuple(strides), padding.upper(), relu=relu)(inputs, kernel, offset)


@functools.cache
def _convolution(strides: tuple[int, int], padding: str, *, relu: bool) -> Callable[..., Any]:
    form = {"strides": [1, *strides, 1], "padding": padding}

    def formulas(inputs: Any, kernel: Any, bias: Any) -> Any:
        outputs = tf.nn.bias_add(tf.nn.conv2d(inputs, kernel, **form), bias)
        return tf.nn.relu(outputs) if relu else outputs

    @xla_function.compiled
    def in_one_pass(upstream: Any, outputs: Any, inputs: Any, kernel: Any, bias: Any) -> list[Any]:
        above, left = (
            max((upstream.shape[axis + 1] - 1) * strides[axis] + kernel.shape[axis] - inputs.shape[axis + 1], 0) // 2
            for axis in range(2)
        )
        name = f"tfperf_few_channels_gradients_{xla_function.TYPES[inputs.dtype.name]}"
        settings = {"stride_down": strides[0], "stride_along": strides[1], "above": above, "left": left}
        return xla_function.call(name, [upstream, outputs, inputs, kernel, bias], [3, 4], relu=int(relu), **settings)

    def convolved(inputs: Any, kernel: Any, bias: Any) -> Any:
        outputs = formulas(inputs, kernel, bias)

        def of_weights(upstream: Any, *operands: Any) -> Any:
            return in_one_pass(upstream, tf.stop_gradient(outputs) if relu else upstream, *operands)

        def backward(upstream: Any) -> list[Any]:
            masked = tf.raw_ops.ReluGrad(gradients=upstream, features=outputs) if relu else upstream
            sizes = tf.shape(inputs)
            # Nobody needs this of images, and then graphs leave it out
            back = tf.raw_ops.Conv2DBackpropInput(input_sizes=sizes, filter=kernel, out_backprop=masked, **form)
            return [back, *gradients_by(of_weights, formulas, first=1)(upstream, inputs, kernel, bias)]

        return outputs, backward

    return with_gradient(convolved)
