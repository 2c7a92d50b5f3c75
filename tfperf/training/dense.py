"""Dense layers: on inputs of three axes or more as one product of matrices, and within XLA in C++."""

from typing import Any

import keras
import tensorflow as tf

from tfperf.training.activation import activate
from tfperf.training.bias import add_bias
from tfperf.training.dense_products import can_multiply_rows, multiply_rows
from tfperf.training.matmul import multiply
from tfperf.training.saved_form import saved_as

__all__ = ["IN_BFLOAT16", "IN_FLOAT32", "FlattenedDense", "multiplies_plainly"]

OF_NUMBERS = (
    keras.activations.relu,
    keras.activations.relu6,
    keras.activations.leaky_relu,
    keras.activations.elu,
    keras.activations.gelu,
    keras.activations.silu,
    keras.activations.tanh,
)
"""Activations that take each number by itself, whatever its axes: TensorFlow fuses them with the product and the bias.
A sigmoid is none, as Keras's losses look for the logits behind it, in the shape that the outputs have."""


@saved_as(keras.layers.Dense)
class FlattenedDense(keras.layers.Dense):  # type: ignore[misc]
    """Keras's `Dense`, which has all axes but the last in one while it multiplies.

    For a sequence Keras takes a product for each example, or moves axes about; TensorFlow fuses neither with the bias.
    One product of two matrices it does. GELU and its like are computed as in `CompiledActivation`. Arguments, weights,
    gradients and the saved form are Keras's. Quantized layers and those with LoRA are left to Keras, as are inputs
    whose axes between the first and the last are unknown.
    """

    def suits(self, shape: tuple[int | None, ...]) -> bool:
        """Whether it computes otherwise than Keras's layer for inputs of this shape, (batch, ..., features)."""
        return multiplies_plainly(self) and len(shape) > 2 and None not in shape[1:]

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Multiply by the kernel.

        Args:
            inputs: (batch, ..., features).
            training: left to Keras.

        Returns:
            (batch, ..., units), in the compute type.
        """
        if not tf.is_tensor(inputs) or not self.suits(tuple(inputs.shape)):
            return super().call(inputs, training=training)
        rows = keras.ops.matmul(tf.reshape(inputs, [-1, inputs.shape[-1]]), self.kernel)
        if self.bias is not None:
            rows = keras.ops.add(rows, self.bias)
        if in_rows := self.activation in OF_NUMBERS:
            rows = activate(self, self.activation, rows)
        outputs = tf.reshape(rows, [-1, *inputs.shape[1:-1], self.units])
        return outputs if in_rows or self.activation is None else self.activation(outputs)


@saved_as(keras.layers.Dense)
class _DenseInBfloat16(keras.layers.Dense):  # type: ignore[misc]
    """Keras's `Dense` within what XLA compiles, in bfloat16, with the products of `multiply`."""

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Multiply by the kernel: (batch, ..., features) -> (batch, ..., units)."""
        kernel = tf.convert_to_tensor(self.kernel)
        half = tf.is_tensor(inputs) and inputs.dtype == kernel.dtype == tf.bfloat16
        if not half or not inputs.shape.is_fully_defined():
            return super().call(inputs, training=training)
        rows = multiply(tf.reshape(inputs, [-1, inputs.shape[-1]]), kernel)
        rows = rows if self.bias is None else add_bias(rows, tf.convert_to_tensor(self.bias))
        outputs = tf.reshape(rows, [*inputs.shape[:-1], self.units])
        return outputs if self.activation is None else self._activated(outputs)

    def _activated(self, outputs: Any) -> Any:
        return self.activation(outputs)


@saved_as(keras.layers.Dense)
class _FlattenedDenseInBfloat16(_DenseInBfloat16):
    """The same, with the activations of `FlattenedDense`."""

    def _activated(self, outputs: Any) -> Any:
        return activate(self, self.activation, outputs)


IN_BFLOAT16: dict[type, type] = {keras.layers.Dense: _DenseInBfloat16, FlattenedDense: _FlattenedDenseInBfloat16}
"""Keras's class and its faster form -> the form within what XLA compiles, where `can_multiply`."""


class _InFloat32(keras.layers.Layer):  # type: ignore[misc]
    """A dense layer of many rows within what XLA compiles; few rows are left to the class behind it."""

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Multiply by the kernel: (batch, ..., features) -> (batch, ..., units)."""
        if self.bias is None or not tf.is_tensor(inputs) or not inputs.shape.is_fully_defined():
            return super().call(inputs, training=training)
        rows, kernel = tf.reshape(inputs, [-1, inputs.shape[-1]]), tf.convert_to_tensor(self.kernel)
        if not can_multiply_rows(rows, kernel):
            return super().call(inputs, training=training)
        relu = self.activation is keras.activations.relu
        found = multiply_rows(rows, kernel, tf.convert_to_tensor(self.bias), relu=relu)
        outputs = tf.reshape(found, [*inputs.shape[:-1], self.units])
        if relu or self.activation is None:
            return outputs
        fused = isinstance(self, FlattenedDense)
        return activate(self, self.activation, outputs) if fused else self.activation(outputs)


@saved_as(keras.layers.Dense)
class _DenseInFloat32(_InFloat32, keras.layers.Dense):  # type: ignore[misc]
    """Keras's `Dense`, with the products of `multiply_rows`."""


@saved_as(keras.layers.Dense)
class _FlattenedDenseInFloat32(_InFloat32, FlattenedDense):
    """The same, with the activations of `FlattenedDense`."""


IN_FLOAT32: dict[type, type] = {keras.layers.Dense: _DenseInFloat32, FlattenedDense: _FlattenedDenseInFloat32}
"""Keras's class and its faster form -> the form within what XLA compiles, in float32."""


def multiplies_plainly(layer: Any) -> bool:
    """Whether a layer is neither quantized nor has LoRA."""
    return not (getattr(layer, "quantization_mode", None) or getattr(layer, "lora_enabled", False))
