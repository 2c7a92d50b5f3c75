"""Layers within what XLA compiles, for which XLA's own code on a CPU is slow beyond doubt."""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from tfperf.training.activation import activate
from tfperf.training.amx_convolution import can_convolve, convolve_by_amx
from tfperf.training.attention import AttentionByAmx, MergedAttention
from tfperf.training.convolution import SwappedConv2D
from tfperf.training.dense import BY_AMX, multiplies_plainly
from tfperf.training.direct_convolution import can_convolve_directly, convolve_directly
from tfperf.training.few_channels import convolve_few_within_xla, is_for_few, pool_few
from tfperf.training.matmul import can_multiply
from tfperf.training.pooling import Pooling, can_pool, pool
from tfperf.training.saved_form import in_training, saved_as, with_class

__all__ = ["native_form", "with_native_layers"]


@contextlib.contextmanager
def with_native_layers(model: keras.Model) -> Iterator[None]:
    """Have layers of a model computed in C++ while XLA's program is traced, whether `fuse` changed them or not.

    Dense layers, attention and convolutions in bfloat16 multiply by AMX where the processor has it, as XLA converts to
    float32. Other convolutions are C++ too; those of few channels and pooling, whose gradient XLA computes number by
    number, are one pass where they follow each other. What C++ cannot do is left to Keras. Afterwards each layer is as
    it was.
    """
    forms = {layer: form for layer in model._flatten_layers() if (form := native_form(layer))}
    with contextlib.ExitStack() as afterwards:
        for layer, form in forms.items():
            afterwards.callback(with_class, layer, type(layer))
            with_class(layer, form)
        yield


@saved_as(keras.layers.Conv2D)
class _NativeConv2D(keras.layers.Conv2D):  # type: ignore[misc]
    """Keras's `Conv2D` in C++, by AMX where the processor has it."""

    def call(self, inputs: Any) -> Any:
        """Convolve, (batch, height, width, channels) -> (batch, height', width', filters)."""
        outputs = _convolved(self, inputs)
        return super().call(inputs) if outputs is None else outputs


@saved_as(keras.layers.Conv2D)
class _NativeSwappedConv2D(SwappedConv2D):
    """The same of `SwappedConv2D`."""

    def call(self, inputs: Any) -> Any:
        """Convolve, (batch, height, width, channels) -> (batch, height', width', filters)."""
        outputs = _convolved(self, inputs)
        return super().call(inputs) if outputs is None else outputs


def _convolved(layer: Any, inputs: Any) -> Any:
    """What a layer computes; None: C++ cannot."""
    if not SwappedConv2D.suits(layer, tuple(inputs.shape)) or layer.groups > 1 or not in_training(layer):
        return None
    kernel, bias = (None if one is None else tf.convert_to_tensor(one) for one in (layer.kernel, layer.bias))
    activation = layer.activation
    if is_for_few(inputs, layer.kernel_size):
        relu = activation is keras.activations.relu
        outputs = convolve_few_within_xla(inputs, kernel, bias, layer.strides, layer.padding, relu=relu)
        activation = None if relu else activation
    else:
        if can_convolve(inputs, kernel, layer.strides, layer.padding):
            outputs = convolve_by_amx(inputs, kernel, layer.padding)
        elif can_convolve_directly(inputs, kernel, layer.padding):
            outputs = convolve_directly(inputs, kernel, layer.strides, layer.padding)
        else:
            return None
        outputs = outputs if bias is None else keras.ops.add(outputs, bias)
    return outputs if activation is None else activate(layer, activation, outputs)


@saved_as(keras.layers.MaxPooling2D)
class _MaxPooling2D(keras.layers.MaxPooling2D):  # type: ignore[misc]
    """Keras's `MaxPooling2D`, in C++, and in one pass with a convolution of few channels before it."""

    def call(self, inputs: Any) -> Any:
        """Take the largest number of each window, (batch, height, width, channels) -> (batch, h', w', channels)."""
        outputs = _pooled(self, inputs, mean=False)
        return super().call(inputs) if outputs is None else outputs


@saved_as(keras.layers.AveragePooling2D)
class _AveragePooling2D(keras.layers.AveragePooling2D):  # type: ignore[misc]
    """The same of `AveragePooling2D`."""

    def call(self, inputs: Any) -> Any:
        """Take the mean of each window, (batch, height, width, channels) -> (batch, h', w', channels)."""
        outputs = _pooled(self, inputs, mean=True)
        return super().call(inputs) if outputs is None else outputs


def _pooled(layer: Any, inputs: Any, *, mean: bool) -> Any:
    """What a layer computes; None: C++ cannot."""
    usual = layer.data_format == "channels_last" and tuple(layer.strides) == tuple(layer.pool_size)
    if not usual or not in_training(layer) or not can_pool(inputs, layer.pool_size, layer.padding):
        return None
    pooling = Pooling(layer.pool_size, mean)
    joined = pool_few(inputs, pooling)
    return pool(inputs, pooling) if joined is None else joined


OF_PRODUCTS = BY_AMX | dict.fromkeys((keras.layers.MultiHeadAttention, MergedAttention), AttentionByAmx)
"""Classes whose products of matrices AMX computes."""

OF_IMAGES = {
    keras.layers.AveragePooling2D: _AveragePooling2D,
    keras.layers.Conv2D: _NativeConv2D,
    SwappedConv2D: _NativeSwappedConv2D,
    keras.layers.MaxPooling2D: _MaxPooling2D,
}
"""Classes that are computed in C++ where they can be, call by call."""


def native_form(layer: keras.Layer) -> type | None:
    """The class that computes a layer of Keras's or `fuse`'s in C++ within what XLA compiles; None: there is none."""
    kind = type(layer)
    if kind in OF_PRODUCTS:
        half = multiplies_plainly(layer) and layer.compute_dtype == "bfloat16"
        return OF_PRODUCTS[kind] if half and can_multiply() else None
    return OF_IMAGES.get(kind)
