"""Layer normalization compiled as one loop, in place of a dozen operations."""

import functools
import math
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfperf.training import xla_function
from tfperf.training.gradients import differentiable
from tfperf.training.saved_form import in_training, saved_as

__all__ = ["CompiledLayerNormalization"]

SOURCE = "layer_norm"


@saved_as(keras.layers.LayerNormalization)
class CompiledLayerNormalization(keras.layers.LayerNormalization):  # type: ignore[misc]
    """Keras's `LayerNormalization`, compiled: in training by the C++ compiler of this machine, else by XLA.

    As Keras has it, each of a dozen operations reads and writes the whole input. In C++ a row is normalized, or its
    gradients computed, while it is in the cache. XLA takes several loops for that; it compiles this layer where there
    is no C++ compiler, on a GPU, in float16, for axes that are not the last ones, and outside training, so that what
    is exported needs nothing of this package. The rest of the model stays as it is. Arguments, weights, gradients and
    the saved form are Keras's. Each shape of the inputs is compiled once. Scaling by the root mean square alone is left
    to Keras.

    Source: Ba, Kiros and Hinton, "Layer Normalization", 2016; Keras's layer of that name.
    """

    def call(self, inputs: Any) -> Any:
        """Normalize.

        Args:
            inputs: (batch, ..., features).

        Returns:
            The same shape, in the compute type.
        """
        if self.rms_scaling or not tf.is_tensor(inputs):
            return super().call(inputs)
        weights = [None if one is None else one.value for one in (self.gamma, self.beta)]
        axes = tuple(self.axis) if isinstance(self.axis, list | tuple) else (self.axis,)
        normalized = _normalized
        if in_training(self) and _is_for_native(inputs, axes) and xla_function.is_there(SOURCE):
            normalized = _natively_normalized
        return tf.cast(normalized(inputs, *weights, axes, self.epsilon), self.compute_dtype)


def _formulas(inputs: Any, gamma: Any, beta: Any, axes: tuple[int, ...], epsilon: float) -> Any:
    return keras.ops.layer_normalization(inputs, gamma, beta, axes, epsilon)


_normalized = xla_function.compiled(_formulas)


def _is_for_native(inputs: Any, axes: tuple[int, ...]) -> bool:
    """Whether the inputs are rows, of a size that is known, of numbers that the functions in C++ take."""
    rank = inputs.shape.rank
    if rank is None or [axis % rank for axis in axes] != list(range(rank - len(axes), rank)):
        return False
    return None not in inputs.shape[-len(axes) :] and inputs.dtype.name in xla_function.TYPES


def _natively_normalized(inputs: Any, gamma: Any, beta: Any, axes: tuple[int, ...], epsilon: float) -> Any:
    width = math.prod(inputs.shape[-len(axes) :])
    scale = tf.ones([width]) if gamma is None else tf.cast(tf.reshape(gamma, [-1]), tf.float32)
    offset = tf.zeros([width]) if beta is None else tf.cast(tf.reshape(beta, [-1]), tf.float32)
    normalized = _native(xla_function.TYPES[inputs.dtype.name], epsilon)
    return tf.reshape(normalized(tf.reshape(inputs, [-1, width]), scale, offset), tf.shape(inputs))


@functools.cache
def _native(kind: str, epsilon: float) -> Callable[..., Any]:
    """Normalization of rows (rows, width) by scales and offsets (width,), in C++."""

    def forward(rows: Any, scale: Any, offset: Any) -> Any:
        (normal,) = xla_function.call(f"tfperf_layer_norm_{kind}", [rows, scale, offset], [0], epsilon=float(epsilon))
        return normal

    def backward(*given: Any) -> Any:
        upstream, rows, scale, _ = given
        name = f"tfperf_layer_norm_gradient_{kind}"
        return xla_function.call(name, [upstream, rows, scale], [1, 2, 2], epsilon=float(epsilon))

    def formulas(rows: Any, scale: Any, offset: Any) -> Any:
        return _formulas(rows, scale, offset, (-1,), epsilon)

    return differentiable(xla_function.compiled(forward), xla_function.compiled(backward), formulas)
