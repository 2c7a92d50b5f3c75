"""What layers convolve: images; a sequence is an image of one row."""

from typing import Any, NamedTuple

import tensorflow as tf

__all__ = ["Images", "are_plain_images", "images_of", "of_layer"]


class Images(NamedTuple):
    """What a layer convolves.

    Attributes:
        inputs: (batch, height, width, channels).
        kernel: (kernel height, kernel width, ...), of the same type.
        strides: of height and width.
        padding: "same" or "valid".
    """

    inputs: Any
    kernel: Any
    strides: tuple[int, int]
    padding: str


def are_plain_images(layer: Any, shape: tuple[int | None, ...]) -> bool:
    """Whether a layer convolves what `images_of` tells, for inputs of this shape: (batch, ..., channels).

    It does not where its kernel is dilated, channels are not the last axis, or sizes are not known.
    """
    usual = layer.data_format == "channels_last" and set(layer.dilation_rate) == {1}
    return usual and None not in shape[1:]


def images_of(layer: Any, inputs: Any, kernel: Any) -> Images:
    """Tell what a layer convolves along one or two axes, where `are_plain_images`.

    Args:
        layer: of Keras, with a rank, strides and a padding.
        inputs: (batch, ..., channels).
        kernel: a weight of the layer.
    """
    kernel = tf.convert_to_tensor(kernel)
    if layer.rank == 2:
        return Images(inputs, kernel, layer.strides, layer.padding)
    padding = layer.padding
    if padding == "causal":
        inputs, padding = tf.pad(inputs, [[0, 0], [kernel.shape[0] - 1, 0], [0, 0]]), "valid"
    in_a_row = tf.expand_dims(inputs, 1), tf.expand_dims(kernel, 0)  # a slice's gradient would be a copy
    return Images(*in_a_row, (*layer.strides, *layer.strides), padding)


def of_layer(layer: Any, outputs: Any) -> Any:
    """Give the outputs of a layer, (batch, ..., filters), from those of its images."""
    return outputs if layer.rank == 2 else tf.squeeze(outputs, 1)
