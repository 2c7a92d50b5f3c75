"""Convolutions of 3 x 3 by Winograd's method, in C++: 16 products where there would be 36."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tfperf.native.processor import has_amx, level_of_cpu, multiplies_pairs
from tfperf.training import xla_function
from tfperf.training.bias import sum_rows
from tfperf.training.gradients import differentiable, gradients_by
from tfperf.training.padding import are_sizes_plain, convolved_side

__all__ = ["can_be_by_winograd", "convolve_by_winograd", "input_gradient_by_winograd", "kernel_gradient_by_winograd"]

SOURCE = "winograd"

LEVELS = ("x86-64-v3", "x86-64-v4")
"""The levels of processors on which it was measured to be faster than oneDNN in float32."""

SIDE = 3
"""The kernel is 3 x 3."""

FEWEST_CHANNELS = 16
"""Channels and filters below which the transforms take longer than they spare."""

FEWEST_PLACES = 2
"""Heights and widths of outputs below which most of a tile is of no use."""


def can_be_by_winograd(inputs: Any, kernel: Any, strides: tuple[int, int], padding: str) -> bool:
    """Whether `convolve_by_winograd` takes such images, is there, and is expected to be faster than sums of products.

    Args:
        inputs, kernel: tensors of any types and shapes.
        strides: of height and width.
        padding: of any word.
    """
    if inputs.dtype != kernel.dtype or inputs.dtype.name not in xla_function.TYPES or tuple(strides) != (1, 1):
        return False
    if not are_sizes_plain(inputs, kernel, padding) or tuple(kernel.shape[:2]) != (SIDE, SIDE):
        return False
    made = min(convolved_side(side, SIDE, 1, padding)[0] for side in inputs.shape[1:3])
    many = min(kernel.shape[2:]) >= FEWEST_CHANNELS and made >= FEWEST_PLACES
    return many and is_faster_in(inputs.dtype.name) and xla_function.is_there(SOURCE)


def is_faster_in(dtype: str) -> bool:
    """Whether it is expected to be faster than oneDNN on this processor, in "float32" or "bfloat16"."""
    if dtype == "bfloat16":
        return multiplies_pairs()
    return level_of_cpu() in LEVELS and not has_amx()


def convolve_by_winograd(inputs: Any, kernel: Any, bias: Any, padding: str) -> Any:
    """Convolve where `can_be_by_winograd`, with strides of 1.

    Sums are rounded a few times more than sums of products are. What is infinite may become NaN.

    Args:
        inputs: (batch, height, width, channels), float32; height and width are known.
        kernel: (3, 3, channels, filters), float32.
        bias: (filters,), float32; None: none.
        padding: "same" or "valid".

    Returns:
        (batch, height', width', filters), float32.

    Source: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2016.
    """
    added = tf.zeros(kernel.shape[3:], kernel.dtype) if bias is None else bias
    return _functions(padding.upper()).convolution(inputs, kernel, added)


def input_gradient_by_winograd(upstream: Any, inputs: Any, kernel: Any, padding: str) -> Any:
    """Give the gradient of a convolution's inputs where `can_be_by_winograd`.

    Args:
        upstream: (batch, height', width', filters), float32.
        inputs, kernel, padding: as of `convolve_by_winograd`.

    Returns:
        Of the shape of the inputs.
    """
    return _functions(padding.upper()).input_gradient(upstream, inputs, kernel)[0]


def kernel_gradient_by_winograd(upstream: Any, inputs: Any, kernel: Any, padding: str) -> Any:
    """Give the gradient of the kernel, of its shape; else as `input_gradient_by_winograd`."""
    return _functions(padding.upper()).kernel_gradient(upstream, inputs, kernel)[0]


class _Functions(NamedTuple):
    """What computes convolutions of one padding."""

    convolution: Callable[..., Any]
    """From inputs, a kernel and a bias."""
    input_gradient: Callable[..., Any]
    """From upstream gradients, inputs and a kernel to a list of one."""
    kernel_gradient: Callable[..., Any]
    """The same."""


@functools.cache
def _functions(padding: str) -> _Functions:
    formulas = functools.partial(tf.nn.conv2d, strides=1, padding=padding)

    def sides(inputs: Any) -> list[tuple[int, int]]:
        return [convolved_side(side, SIDE, 1, padding) for side in inputs.shape[1:3]]

    def called(part: str, operands: list[Any], shape: Any, zeros: list[int]) -> Any:
        form = tf.TensorSpec(shape, operands[0].dtype)
        name = f"tfperf_winograd{part}_{xla_function.TYPES[form.dtype.name]}"
        return xla_function.call(name, operands, [form], above=zeros[0], left=zeros[1])[0]

    @xla_function.compiled
    def forward(inputs: Any, kernel: Any, bias: Any) -> Any:
        (height, above), (width, left) = sides(inputs)
        shape = [inputs.shape[0], height, width, kernel.shape[3]]
        return called("", [inputs, kernel, bias], shape, [above, left])

    @xla_function.compiled
    def of_inputs(upstream: Any, inputs: Any, kernel: Any) -> list[Any]:
        zeros = [SIDE - 1 - before for _, before in sides(inputs)]
        return [called("_of_inputs", [upstream, kernel], inputs.shape, zeros)]

    @xla_function.compiled
    def of_kernel(upstream: Any, inputs: Any, kernel: Any) -> list[Any]:
        zeros = [before for _, before in sides(inputs)]
        return [called("_of_kernel", [upstream, inputs], kernel.shape, zeros)]

    def of_all(upstream: Any, inputs: Any, kernel: Any, _: Any) -> list[Any]:
        given = upstream, inputs, kernel
        return [*of_inputs(*given), *of_kernel(*given), sum_rows(upstream)]

    def with_bias(inputs: Any, kernel: Any, bias: Any) -> Any:
        return tf.nn.bias_add(formulas(inputs, kernel), bias)

    return _Functions(
        differentiable(forward, of_all, with_bias),
        gradients_by(of_inputs, formulas, end=1),
        gradients_by(of_kernel, formulas, first=1),
    )
