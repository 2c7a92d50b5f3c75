"""Dropout in one pass, whose mask is drawn again for the gradient."""

import functools
import math
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfperf.training import xla_function
from tfperf.training.gradients import is_recorded
from tfperf.training.saved_form import saved_as

__all__ = ["CompiledDropout"]

SOURCE = "dropout"

MANTISSA_BITS = {"float32": 23, "bfloat16": 7}
"""The numbers that TensorFlow draws in a type are multiples of 2 to the minus so many."""


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
        return 0 < self.rate < 1 and self.noise_shape is None and self.compute_dtype in xla_function.TYPES

    def call(self, inputs: Any, training: bool = False) -> Any:
        """Set a share of the numbers to 0 and scale the others; the shape stays.

        Args:
            inputs: (batch, ...).
            training: False: they are returned as they are.
        """
        usual = isinstance(inputs, tf.Tensor) and inputs.dtype == self.compute_dtype and self.suits(())
        if not (usual and training and is_recorded() and xla_function.is_there(SOURCE)):
            return super().call(inputs, training=training)
        seed = tf.cast(tf.math.floormod(self.seed_generator.next(), tf.int32.max - 1), tf.int32)  # as Keras does
        key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=seed)
        rounded = inputs.dtype.as_numpy_dtype
        rate, scale = float(rounded(self.rate)), float(rounded(1 / (1 - self.rate)))
        dropped = _dropped(inputs.dtype.name, rate, scale)
        return tf.reshape(dropped(tf.reshape(inputs, [-1]), key, counter), tf.shape(inputs))


@functools.cache
def _dropped(dtype: str, rate: float, scale: float) -> Callable[..., Any]:
    """From numbers of one axis, a key and a counter to those that are kept."""
    threshold = math.ceil(rate * 2 ** MANTISSA_BITS[dtype])

    @xla_function.compiled
    def drop(numbers: Any, key: Any, counter: Any) -> Any:
        name = f"tfperf_dropout_{xla_function.TYPES[dtype]}"
        (found,) = xla_function.call(name, [numbers, key, counter], [0], threshold=threshold, scale=scale)
        return found

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def dropped(numbers: Any, key: Any, counter: Any) -> Any:
        result = drop(*map(tf.stop_gradient, (numbers, key, counter)))
        return result, lambda upstream: (dropped(upstream, key, counter), None, None)

    found: Callable[..., Any] = dropped
    return found
