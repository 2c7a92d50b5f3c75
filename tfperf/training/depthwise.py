"""Depthwise convolutions in bfloat16 whose gradients are computed in float32."""

from typing import Any

import keras
import tensorflow as tf

from tfperf.training.saved_form import saved_as

__all__ = ["WidenedDepthwiseConv2D"]


@saved_as(keras.layers.DepthwiseConv2D)
class WidenedDepthwiseConv2D(keras.layers.DepthwiseConv2D):  # type: ignore[misc]
    """Keras's `DepthwiseConv2D`, which in bfloat16 has both gradients computed in float32, and rounds the results.

    Where the strides are 2 or the kernel is larger than 3 x 3, oneDNN's kernels for them in bfloat16 can take several
    times as long as those in float32, and casting costs less. Arguments, weights and the saved form are Keras's;
    gradients are nearer to those of float32. Left to Keras: other types, channels first, dilation, unlike strides,
    sizes that are not known.
    """

    def suits(self, shape: tuple[int | None, ...]) -> bool:
        """Whether it computes otherwise than Keras's layer for inputs of this shape, (batch, ..., channels)."""
        usual = self.data_format == "channels_last" and tuple(self.dilation_rate) == (1, 1)
        return usual and len(set(self.strides)) == 1 and self.compute_dtype == "bfloat16" and None not in shape[1:]

    def call(self, inputs: Any) -> Any:
        """Convolve, (batch, height, width, channels) -> (batch, height', width', channels * depth multiplier)."""
        if not tf.is_tensor(inputs) or inputs.dtype != tf.bfloat16 or not self.suits(tuple(inputs.shape)):
            return super().call(inputs)
        outputs = _convolved(inputs, tf.convert_to_tensor(self.kernel), self.strides, self.padding)
        if self.use_bias:
            outputs = keras.ops.add(outputs, self.bias)
        return outputs if self.activation is None else self.activation(outputs)


def _convolved(inputs: Any, kernel: Any, strides: tuple[int, int], padding: str) -> Any:
    form = {"strides": [1, *strides, 1], "padding": padding.upper()}

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def convolved(inputs: Any, kernel: Any) -> Any:
        def backward(upstream: Any) -> tuple[Any, Any]:
            wide, wide_kernel, upstream = (tf.cast(one, tf.float32) for one in (inputs, kernel, upstream))
            back = tf.raw_ops.DepthwiseConv2dNativeBackpropInput(
                input_sizes=tf.shape(inputs), filter=wide_kernel, out_backprop=upstream, **form
            )
            gradient = tf.raw_ops.DepthwiseConv2dNativeBackpropFilter(
                input=wide, filter_sizes=kernel.shape, out_backprop=upstream, **form
            )
            return tf.cast(back, inputs.dtype), tf.cast(gradient, kernel.dtype)

        return tf.nn.depthwise_conv2d(inputs, kernel, **form), backward

    return convolved(inputs, kernel)
