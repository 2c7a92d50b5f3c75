"""Layer normalization compiled by XLA, as one loop in place of a dozen operations."""

from typing import Any

import keras
import tensorflow as tf

from tfperf.training.saved_form import saved_as

__all__ = ["CompiledLayerNormalization"]


@saved_as(keras.layers.LayerNormalization)
class CompiledLayerNormalization(keras.layers.LayerNormalization):  # type: ignore[misc]
    """Keras's `LayerNormalization`, whose formulas XLA compiles, forward and backward.

    As Keras has it, each of a dozen operations reads and writes the whole input. The rest of the model stays as it is,
    convolutions and products above all, for which XLA on a CPU is slower. Arguments, weights, gradients and the saved
    form are Keras's. Each shape of the inputs is compiled once. Scaling by the root mean square alone is left to Keras.

    Source: Ba, Kiros and Hinton, "Layer Normalization", 2016; Keras's layer of that name.
    """

    def call(self, inputs: Any) -> Any:
        """Normalize.

        Args:
            inputs: (batch, ..., features).

        Returns:
            The same shape, in the compute type.
        """
        if self.rms_scaling or not tf.is_tensor(inputs):
            return super().call(inputs)
        weights = [None if one is None else one.value for one in (self.gamma, self.beta)]
        axes = tuple(self.axis) if isinstance(self.axis, list | tuple) else self.axis
        return tf.cast(_normalized(inputs, *weights, axes, self.epsilon), self.compute_dtype)


@tf.function(jit_compile=True, autograph=False)  # type: ignore[untyped-decorator]
def _normalized(inputs: Any, gamma: Any, beta: Any, axes: Any, epsilon: float) -> Any:
    return keras.ops.layer_normalization(inputs, gamma, beta, axes, epsilon)
