"""Depthwise convolutions whose two gradients are computed in one pass."""

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfperf.training import xla_function
from tfperf.training.activation import activate
from tfperf.training.gradients import gradients_by, with_gradient
from tfperf.training.images import are_plain_images, images_of, of_layer
from tfperf.training.padding import convolved_side
from tfperf.training.saved_form import in_training, saved_as

__all__ = ["CompiledDepthwiseConv1D", "CompiledDepthwiseConv2D", "ForEachChannel", "convolve_each"]

SOURCE = "depthwise"


class ForEachChannel(keras.layers.Layer):  # type: ignore[misc]
    """What layers have in common that convolve each channel by itself, along one or two axes."""

    def suits(self, shape: tuple[int | None, ...]) -> bool:
        """Whether it computes otherwise than Keras's layer for inputs of this shape, (batch, ..., channels)."""
        alike = len(set(self.strides)) == self.depth_multiplier == 1
        return alike and self.compute_dtype in xla_function.TYPES and are_plain_images(self, shape)

    def call(self, inputs: Any) -> Any:
        """Convolve, (batch, ..., channels) -> (batch, ..., filters)."""
        if not tf.is_tensor(inputs) or inputs.dtype != self.compute_dtype or not self.suits(tuple(inputs.shape)):
            return super().call(inputs)
        outputs = of_layer(self, self._convolved(inputs, training=in_training(self)))
        return outputs if self.activation is None else activate(self, self.activation, outputs)

    def _convolved(self, inputs: Any, *, training: bool) -> Any:
        """Outputs of the images that are convolved, with the bias."""
        raise NotImplementedError


class _Depthwise(ForEachChannel):
    """What the layers here have in common."""

    def _convolved(self, inputs: Any, *, training: bool) -> Any:
        outputs = convolve_each(*images_of(self, inputs, self.kernel), training=training)
        return keras.ops.add(outputs, self.bias) if self.use_bias else outputs


@saved_as(keras.layers.DepthwiseConv2D)
class CompiledDepthwiseConv2D(_Depthwise, keras.layers.DepthwiseConv2D):  # type: ignore[misc]
    """Keras's `DepthwiseConv2D`, with gradients by the C++ compiler of this machine.

    oneDNN's kernels for the gradients take up to ten times as long as the one forward, most of all those in bfloat16
    with strides of 2 or more than 3 x 3 weights. In C++ one pass over the upstream gradients gives both, computed in
    float32 and rounded. Where there is no C++ compiler, and on a GPU, both are computed by TensorFlow in float32, which
    in bfloat16 still pays. Arguments, weights and the saved form are Keras's; in bfloat16 the gradients are nearer to
    those of float32. Left to Keras: float16, channels first, dilation, unlike strides, several outputs for each
    channel, sizes that are not known.
    """


@saved_as(keras.layers.DepthwiseConv1D)
class CompiledDepthwiseConv1D(_Depthwise, keras.layers.DepthwiseConv1D):  # type: ignore[misc]
    """Keras's `DepthwiseConv1D`, as `CompiledDepthwiseConv2D` computes images of one row."""


def convolve_each(inputs: Any, kernel: Any, strides: tuple[int, int], padding: str, *, training: bool = True) -> Any:
    """Convolve each channel by itself, with both gradients by one pass in C++, or in float32 without.

    Args:
        inputs: (batch, height, width, channels), float32 or bfloat16; all but the batch are known.
        kernel: (kernel height, kernel width, channels, 1), of the same type.
        strides: of height and width, the same.
        padding: "same" or "valid".
        training: False: with nothing of C++.

    Returns:
        (batch, height', width', channels).
    """
    native = training and xla_function.is_there(SOURCE)
    return _convolution(tuple(strides), padding.upper(), native=native)(inputs, kernel)


@functools.cache
def _convolution(strides: tuple[int, int], padding: str, *, native: bool) -> Callable[..., Any]:
    """From inputs (batch, height, width, channels) and a kernel (height, width, channels, 1) to the convolution."""
    form = {"strides": [1, *strides, 1], "padding": padding}

    def forward(inputs: Any, kernel: Any) -> Any:
        return tf.nn.depthwise_conv2d(inputs, kernel, **form)

    def widened(upstream: Any, inputs: Any, kernel: Any) -> list[Any]:
        wide, wide_kernel, wide_upstream = (tf.cast(one, tf.float32) for one in (inputs, kernel, upstream))
        back = tf.raw_ops.DepthwiseConv2dNativeBackpropInput(
            input_sizes=tf.shape(inputs), filter=wide_kernel, out_backprop=wide_upstream, **form
        )
        gradient = tf.raw_ops.DepthwiseConv2dNativeBackpropFilter(
            input=wide, filter_sizes=kernel.shape, out_backprop=wide_upstream, **form
        )
        return [tf.cast(back, inputs.dtype), tf.cast(gradient, kernel.dtype)]

    @xla_function.compiled
    def in_one_pass(upstream: Any, inputs: Any, kernel: Any) -> list[Any]:
        above, left = (
            convolved_side(inputs.shape[axis + 1], kernel.shape[axis], strides[axis], padding)[1] for axis in range(2)
        )
        name = f"tfperf_depthwise_gradients_{xla_function.TYPES[inputs.dtype.name]}"
        operands = [upstream, inputs, kernel]
        return xla_function.call(name, operands, [1, 2], stride=strides[0], above=above, left=left)

    gradients_of = gradients_by(in_one_pass if native else widened, forward)

    def convolved(inputs: Any, kernel: Any) -> Any:
        return forward(inputs, kernel), lambda upstream: gradients_of(upstream, inputs, kernel)

    return with_gradient(convolved)
