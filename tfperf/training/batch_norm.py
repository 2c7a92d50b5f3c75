"""Batch normalization as one operation, with Keras's numbers."""

from typing import Any

import keras
import tensorflow as tf

from tfperf.training.saved_form import saved_as

__all__ = ["FusedBatchNormalization"]

FUSED_TYPES = (tf.float32, tf.bfloat16, tf.float16)
"""Types of inputs that the operation takes; its statistics are in float32."""


@saved_as(keras.layers.BatchNormalization)
class FusedBatchNormalization(keras.layers.BatchNormalization):  # type: ignore[misc]
    """Keras's `BatchNormalization` as TensorFlow's FusedBatchNormV3, in the type that the layer computes in.

    Keras casts to float32 and normalizes by many operations; this one reads its input in half the bytes where it is in
    bfloat16, and TensorFlow runs a ReLU behind it as part of it. Arguments, weights, moving statistics, gradients and
    the saved form are Keras's. What the operation cannot do is left to Keras: an axis that is not the last, masks,
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
        given = {
            "x": images,
            "scale": _in_float32(self.gamma) if self.scale else tf.ones([channels]),
            "offset": _in_float32(self.beta) if self.center else tf.zeros([channels]),
            "epsilon": self.epsilon,
        }
        if training and self.trainable:
            fused = tf.raw_ops.FusedBatchNormV3(**given, mean=[], variance=[], exponential_avg_factor=1.0)
            count = tf.size(images, out_type=tf.int64) // channels
            biased = tf.cast(count - 1, tf.float32) / tf.cast(tf.maximum(count, 1), tf.float32)  # as Keras has it
            self._move(self.moving_mean, fused.batch_mean)
            self._move(self.moving_variance, fused.batch_variance * biased)
        else:
            mean, variance = _in_float32(self.moving_mean), _in_float32(self.moving_variance)
            fused = tf.raw_ops.FusedBatchNormV3(**given, mean=mean, variance=variance, is_training=False)
        outputs = fused.y if images is inputs else tf.reshape(fused.y, tf.shape(inputs))
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


def _in_float32(variable: Any) -> Any:
    return tf.cast(variable.value, tf.float32)
