"""Convolutions in C++ for any strides: XLA has no fast code for them on a CPU, nor oneDNN for gradients in float32."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tfperf.training import xla_function
from tfperf.training.gradients import differentiable, gradients_by
from tfperf.training.padding import are_sizes_plain, convolved_side

__all__ = ["can_convolve_directly", "convolve_directly", "input_gradient_directly", "kernel_gradient_directly"]

SOURCE = "direct_convolution"


def can_convolve_directly(inputs: Any, kernel: Any, padding: str) -> bool:
    """Whether `convolve_directly` takes such images, and is there: with a C++ compiler, and without a GPU.

    Args:
        inputs, kernel: tensors of any types and shapes.
        padding: of any word.
    """
    if inputs.dtype != kernel.dtype or inputs.dtype.name not in xla_function.TYPES:
        return False
    return are_sizes_plain(inputs, kernel, padding) and xla_function.is_there(SOURCE)


def convolve_directly(inputs: Any, kernel: Any, strides: tuple[int, int], padding: str) -> Any:
    """Convolve where `can_convolve_directly`.

    Zeros beside the images are multiplied too: of a weight that is not finite they make NaN.

    Args:
        inputs: (batch, height, width, channels), float32 or bfloat16; height and width are known.
        kernel: (kernel height, kernel width, channels, filters), of the same type; not larger than the images if valid.
        strides: of height and width.
        padding: "same" or "valid".

    Returns:
        (batch, height', width', filters), rounded once, from sums in float32.
    """
    return _functions(tuple(strides), padding.upper()).convolution(inputs, kernel)


def input_gradient_directly(upstream: Any, inputs: Any, kernel: Any, strides: tuple[int, int], padding: str) -> Any:
    """Give the gradient of a convolution's inputs where `can_convolve_directly`. Graphs compute it even if nobody asks.

    Args:
        upstream: (batch, height', width', filters), of the same type.
        inputs, kernel, strides, padding: as of `convolve_directly`.

    Returns:
        Of the shape of the inputs, rounded once, from sums in float32.
    """
    return _functions(tuple(strides), padding.upper()).input_gradient(upstream, inputs, kernel)[0]


def kernel_gradient_directly(upstream: Any, inputs: Any, kernel: Any, strides: tuple[int, int], padding: str) -> Any:
    """Give the gradient of the kernel, of its shape; else as `input_gradient_directly`."""
    return _functions(tuple(strides), padding.upper()).kernel_gradient(upstream, inputs, kernel)[0]


class _Functions(NamedTuple):
    """What computes convolutions of one form."""

    convolution: Callable[..., Any]
    """From inputs and a kernel."""
    input_gradient: Callable[..., Any]
    """From upstream gradients, inputs and a kernel to a list of one."""
    kernel_gradient: Callable[..., Any]
    """The same."""


@functools.cache
def _functions(strides: tuple[int, int], padding: str) -> _Functions:
    formulas = functools.partial(tf.nn.conv2d, strides=strides, padding=padding)

    def sides(inputs: Any, kernel: Any) -> list[tuple[int, int]]:
        shapes = zip(inputs.shape[1:3], kernel.shape, strides, strict=False)
        return [convolved_side(*one, padding) for one in shapes]

    def called(part: str, operands: list[Any], shape: Any, inputs: Any, kernel: Any) -> Any:
        (_, above), (_, left) = sides(inputs, kernel)
        settings = {"stride_down": strides[0], "stride_along": strides[1], "above": above, "left": left}
        name = f"tfperf_direct_convolution{part}_{xla_function.TYPES[inputs.dtype.name]}"
        return xla_function.call(name, operands, [tf.TensorSpec(shape, inputs.dtype)], **settings)[0]

    @xla_function.compiled
    def forward(inputs: Any, kernel: Any) -> Any:
        (height, _), (width, _) = sides(inputs, kernel)
        shape = [inputs.shape[0], height, width, kernel.shape[3]]
        return called("", [inputs, kernel], shape, inputs, kernel)

    @xla_function.compiled
    def of_inputs(upstream: Any, inputs: Any, kernel: Any) -> list[Any]:
        return [called("_of_inputs", [upstream, kernel], inputs.shape, inputs, kernel)]

    @xla_function.compiled
    def of_kernel(upstream: Any, inputs: Any, kernel: Any) -> list[Any]:
        return [called("_of_kernel", [upstream, inputs], kernel.shape, inputs, kernel)]

    def of_both(*operands: Any) -> list[Any]:
        return [*of_inputs(*operands), *of_kernel(*operands)]

    return _Functions(
        differentiable(forward, of_both, formulas),
        gradients_by(of_inputs, formulas, end=1),
        gradients_by(of_kernel, formulas, first=1),
    )
