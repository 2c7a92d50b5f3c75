"""Separable convolutions: each channel by itself, then products of matrices."""

from typing import Any

import keras
import tensorflow as tf

from tfperf.training.activation import activate
from tfperf.training.convolution import convolve
from tfperf.training.depthwise import can_convolve_each, convolve_each
from tfperf.training.images import images_of, of_layer
from tfperf.training.saved_form import in_training, saved_as

__all__ = ["CompiledSeparableConv1D", "CompiledSeparableConv2D"]


class _Separable(keras.layers.Layer):  # type: ignore[misc]
    """What the layers here have in common."""

    def suits(self, shape: tuple[int | None, ...]) -> bool:
        """Whether it computes otherwise than Keras's layer for inputs of this shape, (batch, ..., channels)."""
        return can_convolve_each(self, shape)

    def call(self, inputs: Any) -> Any:
        """Convolve, (batch, ..., channels) -> (batch, ..., filters)."""
        if not tf.is_tensor(inputs) or inputs.dtype != self.compute_dtype or not self.suits(tuple(inputs.shape)):
            return super().call(inputs)
        training, bias = in_training(self), None if self.bias is None else tf.convert_to_tensor(self.bias)
        each = convolve_each(*images_of(self, inputs, self.depthwise_kernel), training=training)
        mixing = tf.reshape(self.pointwise_kernel, [1, 1, *self.pointwise_kernel.shape[-2:]])
        outputs = of_layer(self, convolve(each, mixing, bias, training=training))
        return outputs if self.activation is None else activate(self, self.activation, outputs)


@saved_as(keras.layers.SeparableConv2D)
class CompiledSeparableConv2D(_Separable, keras.layers.SeparableConv2D):  # type: ignore[misc]
    """Keras's `SeparableConv2D`: a depthwise convolution as `CompiledDepthwiseConv2D`, one of 1 x 1 as `SwappedConv2D`.

    Arguments, weights and the saved form are Keras's. Left to Keras: the same as of `CompiledDepthwiseConv2D`.
    """


@saved_as(keras.layers.SeparableConv1D)
class CompiledSeparableConv1D(_Separable, keras.layers.SeparableConv1D):  # type: ignore[misc]
    """Keras's `SeparableConv1D`, as `CompiledSeparableConv2D` computes images of one row."""
