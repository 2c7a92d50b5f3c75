"""Batch normalization as one operation, with Keras's numbers."""

import functools
from typing import Any

import keras
import tensorflow as tf

from tfperf.training import xla_function
from tfperf.training.gradients import gradients_by, is_recorded, with_gradient
from tfperf.training.saved_form import saved_as

__all__ = ["FusedBatchNormalization"]

SOURCE = "batch_norm"

FUSED_TYPES = (tf.float32, tf.bfloat16, tf.float16)
"""Types of inputs that the operation takes; its statistics are in float32."""


@saved_as(keras.layers.BatchNormalization)
class FusedBatchNormalization(keras.layers.BatchNormalization):  # type: ignore[misc]
    """Keras's `BatchNormalization` as TensorFlow's FusedBatchNormV3, in the type that the layer computes in.

    Keras casts to float32 and normalizes by many operations; this one reads its input in half the bytes where it is in
    bfloat16, and TensorFlow runs a ReLU behind it as part of it. In float32 it is two passes in C++ while it trains,
    and so are its gradients, where there is a compiler. Arguments, weights, moving statistics, gradients and the saved
    form are Keras's. What the operation cannot do is left to Keras: an axis that is not the last, masks,
    renormalization, statistics of all replicas together, float64.

    Source: Ioffe and Szegedy, "Batch Normalization", 2015; Keras's layer of that name.
    """

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        """Normalize.

        Args:
            inputs: (batch, ..., channels), two axes or more.
            training: whether to normalize by the batch and move the statistics.
            mask: left to Keras.

        Returns:
            The same shape, in the compute type.
        """
        if mask is not None or not self._is_fusable(inputs):
            return super().call(inputs, training=training, mask=mask)
        channels = inputs.shape[-1]
        images = inputs if inputs.shape.rank == 4 else tf.reshape(inputs, [-1, 1, 1, channels])
        scale = _in_float32(self.gamma) if self.scale else tf.ones([channels])
        offset = _in_float32(self.beta) if self.center else tf.zeros([channels])
        if training and self.trainable:
            normal, mean, variance = _normalized(images, scale, offset, self.epsilon)
            self._move(self.moving_mean, mean)
            self._move(self.moving_variance, variance)
        else:
            moments = {"mean": _in_float32(self.moving_mean), "variance": _in_float32(self.moving_variance)}
            given = {"x": images, "scale": scale, "offset": offset, "epsilon": self.epsilon}
            normal = tf.raw_ops.FusedBatchNormV3(**given, **moments, is_training=False).y
        outputs = normal if images is inputs else tf.reshape(normal, tf.shape(inputs))
        outputs.set_shape(inputs.shape)
        return tf.cast(outputs, self.compute_dtype)

    def _is_fusable(self, inputs: Any) -> bool:
        return (
            not (self.renorm or self.synchronized)
            and self.axis in (-1, inputs.shape.rank - 1)
            and inputs.shape.rank >= 2
            and inputs.shape[-1] is not None
            and inputs.dtype in FUSED_TYPES
        )

    def _move(self, moving: Any, seen: Any) -> None:
        old = _in_float32(moving)
        moving.assign(tf.cast(old * self.momentum + seen * (1.0 - self.momentum), moving.dtype))


def _normalized(images: Any, scale: Any, offset: Any, epsilon: float) -> tuple[Any, Any, Any]:
    """Normalize (batch, height, width, channels) by themselves; that, and the mean and the biased variance of each."""
    if images.dtype == tf.float32 and is_recorded() and xla_function.is_there(SOURCE):
        return _normalized_by_passes(images, scale, offset, epsilon)
    given = {"x": images, "scale": scale, "offset": offset, "epsilon": epsilon}
    fused = tf.raw_ops.FusedBatchNormV3(**given, mean=[], variance=[], exponential_avg_factor=1.0)
    count = tf.size(images, out_type=tf.int64) // images.shape[-1]
    biased = tf.cast(count - 1, tf.float32) / tf.cast(tf.maximum(count, 1), tf.float32)  # as Keras has it
    return fused.y, fused.batch_mean, fused.batch_variance * biased


def _normalized_by_passes(images: Any, scale: Any, offset: Any, epsilon: float) -> tuple[Any, Any, Any]:
    """The same by C++ where a tape sees it."""
    moments: list[Any] = []

    def normalized(images: Any, scale: Any, offset: Any) -> Any:
        outputs, *moments[:] = _forward(images, scale, offset, epsilon)

        def of_all(upstream: Any, images: Any, scale: Any, _: Any) -> Any:
            return _backward(upstream, images, scale, *moments, epsilon)

        gradients_of = gradients_by(of_all, functools.partial(_formulas, epsilon=epsilon))
        return outputs, lambda upstream: gradients_of(upstream, images, scale, offset)

    outputs = with_gradient(normalized)(images, scale, offset)
    return outputs, *moments


@xla_function.compiled
def _forward(images: Any, scale: Any, offset: Any, epsilon: float) -> list[Any]:
    rows = tf.reshape(images, [-1, images.shape[-1]])
    found, *moments = xla_function.call("tfperf_batch_norm_f32", [rows, scale, offset], [0, 1, 1], epsilon=epsilon)
    return [tf.reshape(found, tf.shape(images)), *moments]


@xla_function.compiled
def _backward(upstream: Any, images: Any, scale: Any, mean: Any, variance: Any, epsilon: float) -> list[Any]:
    rows = [tf.reshape(one, [-1, images.shape[-1]]) for one in (upstream, images)]
    operands, name = [*rows, scale, mean, variance], "tfperf_batch_norm_gradients_f32"
    found, *others = xla_function.call(name, operands, [1, 2, 2], epsilon=epsilon)
    return [tf.reshape(found, tf.shape(images)), *others]


def _formulas(images: Any, scale: Any, offset: Any, epsilon: float) -> Any:
    """The same by TensorFlow's operations, whose gradients have gradients."""
    mean, variance = tf.nn.moments(images, [0, 1, 2])
    return (images - mean) * tf.math.rsqrt(variance + epsilon) * scale + offset


def _in_float32(variable: Any) -> Any:
    return tf.cast(variable.value, tf.float32)
