"""Layers within what XLA compiles, for which XLA's own code on a CPU is slow beyond doubt."""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from tfperf.training.activation import activate
from tfperf.training.amx_convolution import can_convolve, convolve_by_amx
from tfperf.training.attention import AttentionInBfloat16, AttentionInFloat32, MergedAttention
from tfperf.training.bias import add_bias
from tfperf.training.convolution import SwappedConv1D, SwappedConv2D
from tfperf.training.dense import IN_BFLOAT16, IN_FLOAT32, multiplies_plainly
from tfperf.training.direct_convolution import can_convolve_directly, convolve_directly
from tfperf.training.few_channels import convolve_few_within_xla, is_for_few, pool_few
from tfperf.training.images import are_plain_images, images_of, of_layer
from tfperf.training.matmul import can_multiply
from tfperf.training.pooling import Pooling, can_pool, pool
from tfperf.training.recurrent import CompiledGRU, CompiledLSTM
from tfperf.training.saved_form import in_training, saved_as, with_class
from tfperf.training.winograd import can_be_by_winograd, convolve_by_winograd

__all__ = ["native_form", "with_native_layers"]


@contextlib.contextmanager
def with_native_layers(model: keras.Model) -> Iterator[None]:
    """Have layers of a model computed in C++ while XLA's program is traced, whether `fuse` changed them or not.

    In bfloat16 Dense layers, attention and convolutions multiply by AMX or pairs of numbers where the processor does,
    as XLA converts to float32; in float32 Dense layers and attention of many rows are C++ where there is AVX2 alone.
    Other convolutions are C++ too, as are the steps of LSTM and GRU; convolutions of few channels and pooling, whose
    gradient XLA computes number by number, are one pass where they follow each other. What C++ cannot do is left to
    Keras. Afterwards each layer is as it was.
    """
    forms = {layer: form for layer in model._flatten_layers() if (form := native_form(layer))}
    with contextlib.ExitStack() as afterwards:
        for layer, form in forms.items():
            afterwards.callback(with_class, layer, type(layer))
            with_class(layer, form)
        yield


class _Native(keras.layers.Layer):  # type: ignore[misc]
    """A convolution in C++, by AMX where the processor has it; what C++ cannot do is left to the class behind it."""

    def call(self, inputs: Any) -> Any:
        """Convolve, (batch, ..., channels) -> (batch, ..., filters)."""
        outputs = _convolved(self, inputs)
        return super().call(inputs) if outputs is None else outputs


@saved_as(keras.layers.Conv1D)
class _NativeConv1D(_Native, keras.layers.Conv1D):  # type: ignore[misc]
    """Keras's `Conv1D` in C++."""


@saved_as(keras.layers.Conv1D)
class _NativeSwappedConv1D(_Native, SwappedConv1D):
    """The same of `SwappedConv1D`."""


@saved_as(keras.layers.Conv2D)
class _NativeConv2D(_Native, keras.layers.Conv2D):  # type: ignore[misc]
    """Keras's `Conv2D` in C++."""


@saved_as(keras.layers.Conv2D)
class _NativeSwappedConv2D(_Native, SwappedConv2D):
    """The same of `SwappedConv2D`."""


def _convolved(layer: Any, inputs: Any) -> Any:
    """What a layer computes; None: C++ cannot."""
    if not are_plain_images(layer, tuple(inputs.shape)) or layer.groups > 1 or not in_training(layer):
        return None
    images = images_of(layer, inputs, layer.kernel)
    bias = None if layer.bias is None else tf.convert_to_tensor(layer.bias)
    activation = layer.activation
    if is_for_few(images.inputs, images.kernel.shape[:2]):
        relu = activation is keras.activations.relu
        outputs = convolve_few_within_xla(images.inputs, images.kernel, bias, images.strides, images.padding, relu=relu)
        activation = None if relu else activation
    else:
        if can_convolve(*images):
            outputs = convolve_by_amx(images.inputs, images.kernel, images.padding)
        elif can_be_by_winograd(*images):
            outputs, bias = convolve_by_winograd(images.inputs, images.kernel, bias, images.padding), None
        elif can_convolve_directly(images.inputs, images.kernel, images.padding):
            outputs = convolve_directly(*images)
        else:
            return None
        outputs = outputs if bias is None else add_bias(outputs, bias)
    outputs = of_layer(layer, outputs)
    return outputs if activation is None else activate(layer, activation, outputs)


class _Pooling(keras.layers.Layer):  # type: ignore[misc]
    """Pooling in C++, and in one pass with a convolution of few channels before it."""

    def call(self, inputs: Any) -> Any:
        """Take one number of each window, (batch, ..., channels) -> (batch, ..., channels)."""
        outputs = _pooled(self, inputs)
        return super().call(inputs) if outputs is None else outputs


@saved_as(keras.layers.MaxPooling1D)
class _MaxPooling1D(_Pooling, keras.layers.MaxPooling1D):  # type: ignore[misc]
    """Keras's `MaxPooling1D` in C++."""


@saved_as(keras.layers.MaxPooling2D)
class _MaxPooling2D(_Pooling, keras.layers.MaxPooling2D):  # type: ignore[misc]
    """Keras's `MaxPooling2D` in C++."""


@saved_as(keras.layers.AveragePooling1D)
class _AveragePooling1D(_Pooling, keras.layers.AveragePooling1D):  # type: ignore[misc]
    """Keras's `AveragePooling1D` in C++."""


@saved_as(keras.layers.AveragePooling2D)
class _AveragePooling2D(_Pooling, keras.layers.AveragePooling2D):  # type: ignore[misc]
    """Keras's `AveragePooling2D` in C++."""


def _pooled(layer: Any, inputs: Any) -> Any:
    """What a layer computes; None: C++ cannot."""
    window, strides = _in_images(layer.pool_size), _in_images(layer.strides)
    usual = layer.data_format == "channels_last" and strides == window
    if not usual or not in_training(layer) or not tf.is_tensor(inputs):
        return None
    images = inputs if inputs.shape.rank == 4 else tf.expand_dims(inputs, 1)
    if not can_pool(images, window, layer.padding):
        return None
    pooling = Pooling(window, mean=layer.pool_mode == "average")
    joined = pool_few(images, pooling)
    outputs = pool(images, pooling) if joined is None else joined
    return outputs if inputs.shape.rank == 4 else tf.squeeze(outputs, 1)


def _in_images(sizes: Any) -> tuple[int, int]:
    """Height and width of a window or of strides; along a sequence, which is an image of one row, the height is 1."""
    height, width = (1, *sizes)[-2:]
    return height, width


ATTENTIONS = (keras.layers.MultiHeadAttention, MergedAttention)

OF_PRODUCTS: dict[str, dict[type, type]] = {
    "bfloat16": IN_BFLOAT16 | dict.fromkeys(ATTENTIONS, AttentionInBfloat16),
    "float32": IN_FLOAT32 | dict.fromkeys(ATTENTIONS, AttentionInFloat32),
}
"""Compute type -> classes whose products of matrices are computed in C++."""

OTHERS: dict[type, type] = {
    keras.layers.AveragePooling1D: _AveragePooling1D,
    keras.layers.AveragePooling2D: _AveragePooling2D,
    keras.layers.Conv1D: _NativeConv1D,
    SwappedConv1D: _NativeSwappedConv1D,
    keras.layers.Conv2D: _NativeConv2D,
    SwappedConv2D: _NativeSwappedConv2D,
    keras.layers.GRU: CompiledGRU,
    keras.layers.LSTM: CompiledLSTM,
    keras.layers.MaxPooling1D: _MaxPooling1D,
    keras.layers.MaxPooling2D: _MaxPooling2D,
    keras.layers.MultiHeadAttention: MergedAttention,
}
"""Classes that are computed in C++ where they can be, call by call."""


def native_form(layer: keras.Layer) -> type | None:
    """The class that computes a layer of Keras's or `fuse`'s in C++ within what XLA compiles; None: there is none."""
    kind, compute = type(layer), layer.compute_dtype
    forms = OF_PRODUCTS.get(compute, {}) if compute == "float32" or can_multiply() else {}
    if kind in forms and multiplies_plainly(layer):
        return forms[kind]
    return OTHERS.get(kind)
