"""Pooling by C++, within what XLA compiles: XLA computes its gradient number by number."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tfperf.training import xla_function
from tfperf.training.gradients import differentiable

__all__ = ["Pooling", "can_pool", "pool"]

SOURCE = "pooling"

MOST_PLACES = 2**16
"""In a window: the code in C++ counts them in 16 bits."""


class Pooling(NamedTuple):
    """What is taken of windows that do not overlap, and leave nothing out between them.

    Attributes:
        window: height and width.
        mean: the mean of its numbers; False: the largest.
    """

    window: tuple[int, int]
    mean: bool = False

    @property
    def name(self) -> str:
        """The word that the functions in C++ have in their names."""
        return "mean" if self.mean else "max"

    def by_formulas(self, inputs: Any) -> Any:
        """Compute it by TensorFlow's operations."""
        function = tf.nn.avg_pool2d if self.mean else tf.nn.max_pool2d
        return function(inputs, self.window, self.window, "VALID")


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


def pool(inputs: Any, pooling: Pooling) -> Any:
    """Pool where `can_pool`, forward and backward in one pass each.

    Where the largest number is there twice, the first has the gradient, as in TensorFlow.

    Args:
        inputs: (batch, height, width, channels), float32 or bfloat16; height and width are known.
        pooling: windows, and what is taken of them.

    Returns:
        (batch, height', width', channels).
    """
    return _function(pooling)(inputs)


@functools.cache
def _function(pooling: Pooling) -> Callable[[Any], Any]:
    settings = dict(zip(("window_height", "window_width"), pooling.window, strict=True))

    @xla_function.compiled
    def forward(inputs: Any) -> Any:
        batch, height, width, channels = inputs.shape
        sizes = [height // pooling.window[0], width // pooling.window[1]]
        pooled = tf.TensorSpec([batch, *sizes, channels], inputs.dtype)
        name = f"tfperf_{pooling.name}_pooling_{xla_function.TYPES[inputs.dtype.name]}"
        (result,) = xla_function.call(name, [inputs], [pooled], **settings)
        return result

    @xla_function.compiled
    def backward(upstream: Any, inputs: Any) -> list[Any]:
        name = f"tfperf_{pooling.name}_pooling_gradient_{xla_function.TYPES[inputs.dtype.name]}"
        return xla_function.call(name, [upstream, inputs], [1], **settings)

    return differentiable(forward, backward, pooling.by_formulas)
