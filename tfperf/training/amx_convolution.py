"""Convolutions in bfloat16 by AMX, forward and backward: XLA has no fast code for them, nor oneDNN for large ones."""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfperf.native.processor import has_amx
from tfperf.training import xla_function
from tfperf.training.gradients import differentiable
from tfperf.training.kernel_gradient import can_be_by_amx, kernel_gradient
from tfperf.training.padding import are_sizes_plain

__all__ = ["can_convolve", "convolve_by_amx"]

SOURCE = "amx_convolution"


def can_convolve(inputs: Any, kernel: Any, strides: tuple[int, int], padding: str) -> bool:
    """Whether `convolve_by_amx` takes such images, and is there: the processor has AMX, and there is a C++ compiler.

    Args:
        inputs, kernel: tensors of any types and shapes.
        strides: of height and width.
        padding: of any word.
    """
    if not inputs.dtype == kernel.dtype == tf.bfloat16 or tuple(strides) != (1, 1):
        return False
    plain = are_sizes_plain(inputs, kernel, padding)
    return plain and has_amx() and xla_function.is_there(SOURCE) and can_be_by_amx()


def convolve_by_amx(inputs: Any, kernel: Any, padding: str) -> Any:
    """Convolve with strides of 1 where `can_convolve`.

    Zeros beside the images are multiplied too: of a weight that is not finite they make NaN.

    Args:
        inputs: (batch, height, width, channels), bfloat16; height and width are known.
        kernel: (kernel height, kernel width, channels, filters), bfloat16; not larger than the images if valid.
        padding: "same" or "valid".

    Returns:
        (batch, height', width', filters), bfloat16, rounded once, from sums in float32.
    """
    return _convolution(padding.upper())(inputs, kernel)


@functools.cache
def _convolution(padding: str) -> Callable[..., Any]:
    @xla_function.compiled
    def forward(inputs: Any, kernel: Any) -> Any:
        lost = [0, 0] if padding == "SAME" else [side - 1 for side in kernel.shape[:2]]
        sizes = [side - less for side, less in zip(inputs.shape[1:3], lost, strict=True)]
        return _called(inputs, kernel, [*sizes, kernel.shape[3]], _before(kernel, padding))

    @xla_function.compiled
    def of_inputs(upstream: Any, inputs: Any, kernel: Any) -> Any:
        before = [side - 1 - zeros for side, zeros in zip(kernel.shape, _before(kernel, padding), strict=False)]
        return _called(upstream, kernel, inputs.shape[1:], before, turned=1)

    def backward(upstream: Any, inputs: Any, kernel: Any) -> list[Any]:
        return [of_inputs(upstream, inputs, kernel), kernel_gradient(upstream, inputs, kernel, padding)]

    return differentiable(forward, backward, functools.partial(tf.nn.conv2d, strides=1, padding=padding))


def _before(kernel: Any, padding: str) -> list[int]:
    """How many zeros are read above and left of the inputs."""
    return [(side - 1) // 2 if padding == "SAME" else 0 for side in kernel.shape[:2]]


def _called(inputs: Any, kernel: Any, sizes: Any, before: list[int], turned: int = 0) -> Any:
    form = tf.TensorSpec([inputs.shape[0], *sizes], inputs.dtype)
    settings = {"above": before[0], "left": before[1], "turned": turned}
    return xla_function.call("tfperf_convolution_bf16", [inputs, kernel], [form], **settings)[0]
