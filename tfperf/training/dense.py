"""A dense layer on inputs of three axes or more, as one product of matrices."""

from typing import Any

import keras
import tensorflow as tf

from tfperf.training.saved_form import saved_as

__all__ = ["FlattenedDense"]


@saved_as(keras.layers.Dense)
class FlattenedDense(keras.layers.Dense):  # type: ignore[misc]
    """Keras's `Dense`, which has all axes but the last in one while it computes.

    For a sequence Keras takes a product for each example, or moves axes about; TensorFlow fuses neither with the bias.
    One product of two matrices it does. Arguments, weights, gradients and the saved form are Keras's. Quantized layers
    and those with LoRA are left to Keras, as are inputs whose axes between the first and the last are unknown.
    """

    @classmethod
    def suits(cls, shape: tuple[int | None, ...]) -> bool:
        """Whether it computes otherwise than Keras's layer for inputs of this shape, (batch, ..., features)."""
        return len(shape) > 2 and None not in shape[1:]

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Multiply by the kernel.

        Args:
            inputs: (batch, ..., features).
            training: left to Keras.

        Returns:
            (batch, ..., units), in the compute type.
        """
        plain = getattr(self, "quantization_mode", None) or getattr(self, "lora_enabled", False)
        if plain or not tf.is_tensor(inputs) or not self.suits(tuple(inputs.shape)):
            return super().call(inputs, training=training)
        rows = super().call(tf.reshape(inputs, [-1, inputs.shape[-1]]), training=training)
        return tf.reshape(rows, [-1, *inputs.shape[1:-1], self.units])
