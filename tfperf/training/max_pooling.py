"""Max pooling by C++, within what XLA compiles: XLA computes its gradient number by number."""

import functools
import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfperf.training import xla_function
from tfperf.training.gradients import differentiable

__all__ = ["can_pool", "pool"]

SOURCE = "max_pooling"

MOST_PLACES = 2**16
"""In a window: the code in C++ counts them in 16 bits."""


def can_pool(inputs: Any, window: tuple[int, int], padding: str) -> bool:
    """Whether `pool` takes such images and windows, and is there.

    Args:
        inputs: images, in any type.
        window: height and width.
        padding: "same": windows must fill the images; "valid": what is left over belongs to none.
    """
    if not tf.is_tensor(inputs) or None in inputs.shape[1:] or math.prod(window) > MOST_PLACES:
        return False
    sides = zip(inputs.shape[1:3], window, strict=True)
    fits = all(side % along == 0 or (side > along and padding == "valid") for side, along in sides)
    return fits and inputs.dtype.name in xla_function.TYPES and xla_function.is_there(SOURCE)


def pool(inputs: Any, window: tuple[int, int]) -> Any:
    """Take the largest number of each window where `can_pool`, forward and backward in one pass each.

    Windows do not overlap, and leave nothing out between them.
    Where the largest number is there twice, the first has the gradient, as in TensorFlow.

    Args:
        inputs: (batch, height, width, channels), float32 or bfloat16; height and width are known.
        window: height and width.

    Returns:
        (batch, height', width', channels).
    """
    return _pooling(window)(inputs)


@functools.cache
def _pooling(window: tuple[int, int]) -> Callable[[Any], Any]:
    settings = dict(zip(("window_height", "window_width"), window, strict=True))

    def formulas(inputs: Any) -> Any:
        return tf.nn.max_pool2d(inputs, window, window, "VALID")

    @xla_function.compiled
    def forward(inputs: Any) -> Any:
        batch, height, width, channels = inputs.shape
        pooled = tf.TensorSpec([batch, height // window[0], width // window[1], channels], inputs.dtype)
        name = f"tfperf_max_pooling_{xla_function.TYPES[inputs.dtype.name]}"
        (result,) = xla_function.call(name, [inputs], [pooled], **settings)
        return result

    @xla_function.compiled
    def backward(upstream: Any, inputs: Any) -> list[Any]:
        name = f"tfperf_max_pooling_gradient_{xla_function.TYPES[inputs.dtype.name]}"
        return xla_function.call(name, [upstream, inputs], [1], **settings)

    return differentiable(forward, backward, formulas)
