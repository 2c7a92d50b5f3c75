"""Dropout in one pass, whose mask is drawn again for the gradient."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfperf.training import xla_function
from tfperf.training.gradients import is_recorded
from tfperf.training.saved_form import saved_as

__all__ = ["CompiledDropout", "Dropped", "can_drop", "drop", "dropped_of", "next_draws"]

SOURCE = "dropout"

MANTISSA_BITS = {"float32": 23, "bfloat16": 7}
"""The numbers that TensorFlow draws in a type are multiples of 2 to the minus so many."""


class Dropped(NamedTuple):
    """Dropout as numbers of a type have it."""

    threshold: int
    """Numbers are dropped whose draw, a whole number of TensorFlow's, is below it."""
    scale: float
    """The others are multiplied by it."""


def dropped_of(rate: float, dtype: tf.DType) -> Dropped:
    """A share of numbers as Keras rounds it to their type, float32 or bfloat16."""
    rounded = dtype.as_numpy_dtype
    threshold = math.ceil(float(rounded(rate)) * 2 ** MANTISSA_BITS[dtype.name])
    return Dropped(threshold, float(rounded(1 / (1 - rate))))


def can_drop(layer: keras.layers.Dropout) -> bool:
    """Whether a layer drops a share that C++ can: there is a C++ compiler, and no GPU."""
    usual = 0 < layer.rate < 1 and layer.noise_shape is None and layer.compute_dtype in xla_function.TYPES
    return usual and xla_function.is_there(SOURCE)


def next_draws(layer: keras.layers.Dropout) -> tuple[Any, Any]:
    """The key and the counter, uint64, (1,) and (2,), from which Keras's layer would draw next; its seed goes on."""
    seed = tf.cast(tf.math.floormod(layer.seed_generator.next(), tf.int32.max - 1), tf.int32)  # as Keras does
    key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=seed)
    return key, counter


def drop(numbers: Any, key: Any, counter: Any, dropped: Dropped) -> Any:
    """Set numbers to 0 and scale the others, whatever their shape, where `can_drop`."""
    return tf.reshape(_dropped(numbers.dtype.name, dropped)(tf.reshape(numbers, [-1]), key, counter), tf.shape(numbers))


@saved_as(keras.layers.Dropout)
class CompiledDropout(keras.layers.Dropout):  # type: ignore[misc]
    """Keras's `Dropout` in one pass, with the numbers that TensorFlow draws outside of XLA for the same seed.

    As Keras has it, drawing, comparing, scaling and selecting are operations of their own, and the mask is kept for the
    gradient. In C++ sixteen draws are made at a time, and once more for the gradient. Arguments, the seed's state and
    the saved form are Keras's. Left to Keras: a shape of the noise, float16, GPUs, where there is no C++ compiler,
    and where no tape records, so that what is exported needs nothing of this package.

    Source: Srivastava et al., "Dropout: a simple way to prevent neural networks from overfitting", 2014; Keras's layer
    of that name.
    """

    def suits(self, _shape: tuple[int | None, ...]) -> bool:
        """Whether it computes otherwise than Keras's layer, whatever the shape of the inputs."""
        return can_drop(self)

    def call(self, inputs: Any, training: bool = False) -> Any:
        """Set a share of the numbers to 0 and scale the others; the shape stays.

        Args:
            inputs: (batch, ...).
            training: False: they are returned as they are.
        """
        usual = isinstance(inputs, tf.Tensor) and inputs.dtype == self.compute_dtype and training and is_recorded()
        if not (usual and can_drop(self)):
            return super().call(inputs, training=training)
        return drop(inputs, *next_draws(self), dropped_of(self.rate, inputs.dtype))


@functools.cache
def _dropped(dtype: str, dropped: Dropped) -> Callable[..., Any]:
    """From numbers of one axis, a key and a counter to those that are kept."""

    @xla_function.compiled
    def natively(numbers: Any, key: Any, counter: Any) -> Any:
        name = f"tfperf_dropout_{xla_function.TYPES[dtype]}"
        (found,) = xla_function.call(name, [numbers, key, counter], [0], **dropped._asdict())
        return found

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def function(numbers: Any, key: Any, counter: Any) -> Any:
        result = natively(*map(tf.stop_gradient, (numbers, key, counter)))
        return result, lambda upstream: (function(upstream, key, counter), None, None)

    found: Callable[..., Any] = function
    return found
