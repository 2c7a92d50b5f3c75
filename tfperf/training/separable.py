"""Separable convolutions: each channel by itself, then products of matrices."""

from typing import Any

import keras
import tensorflow as tf

from tfperf.training.convolution import convolve
from tfperf.training.depthwise import ForEachChannel, convolve_each
from tfperf.training.images import images_of
from tfperf.training.saved_form import saved_as

__all__ = ["CompiledSeparableConv1D", "CompiledSeparableConv2D"]


class _Separable(ForEachChannel):
    """What the layers here have in common."""

    def _convolved(self, inputs: Any, *, training: bool) -> Any:
        each = convolve_each(*images_of(self, inputs, self.depthwise_kernel), training=training)
        mixing = tf.reshape(self.pointwise_kernel, [1, 1, *self.pointwise_kernel.shape[-2:]])
        bias = None if self.bias is None else tf.convert_to_tensor(self.bias)
        return convolve(each, mixing, bias, training=training)


@saved_as(keras.layers.SeparableConv2D)
class CompiledSeparableConv2D(_Separable, keras.layers.SeparableConv2D):  # type: ignore[misc]
    """Keras's `SeparableConv2D`: a depthwise convolution as `CompiledDepthwiseConv2D`, one of 1 x 1 as `SwappedConv2D`.

    Arguments, weights and the saved form are Keras's. Left to Keras: the same as of `CompiledDepthwiseConv2D`.
    """


@saved_as(keras.layers.SeparableConv1D)
class CompiledSeparableConv1D(_Separable, keras.layers.SeparableConv1D):  # type: ignore[misc]
    """Keras's `SeparableConv1D`, as `CompiledSeparableConv2D` computes images of one row."""
