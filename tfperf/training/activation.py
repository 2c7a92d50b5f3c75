"""Activations that are computed, and differentiated, in one pass over their numbers."""

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfperf.training import xla_function
from tfperf.training.saved_form import in_training, saved_as

__all__ = ["CompiledActivation", "CompiledReLU", "activate"]

SOURCE = "activation"

FUNCTIONS: dict[Any, str] = {
    keras.activations.gelu: "gelu",
    keras.activations.hard_silu: "hard_silu",
    keras.activations.relu6: "relu6",
    keras.activations.silu: "silu",
}
"""Keras's functions, with their defaults -> what their code in C++ is called. A plain ReLU is not among them: where it
stands behind a convolution or a batch normalization, TensorFlow runs it as part of that."""


@saved_as(keras.layers.Activation)
class CompiledActivation(keras.layers.Activation):  # type: ignore[misc]
    """Keras's `Activation` of GELU, SiLU, hard SiLU or ReLU6, with C++ that is compiled on this machine in training.

    As Keras has them, the gradient alone is up to ten operations, each of which reads and writes all numbers, and
    rounds them where they are in bfloat16. In C++ it is one pass, in float32 within. GELU is within 3e-7 of the exact
    one. Arguments and the saved form are Keras's. Left to Keras: other functions, float16, GPUs, where there is no C++
    compiler, and outside training, so that what is exported needs nothing of this package.

    Source: Hendrycks and Gimpel, "Gaussian error linear units", 2016; Keras's functions of these names.
    """

    def suits(self, _shape: tuple[int | None, ...]) -> bool:
        """Whether it computes otherwise than Keras's layer, whatever the shape of the inputs."""
        return _may_be_native(self, self.activation)

    def call(self, inputs: Any) -> Any:
        """Activate each number; the shape stays."""
        return activate(self, self.activation, inputs)


@saved_as(keras.layers.ReLU)
class CompiledReLU(keras.layers.ReLU):  # type: ignore[misc]
    """Keras's `ReLU` that ends at 6, as `CompiledActivation` computes it; all others are left to Keras."""

    def suits(self, _shape: tuple[int | None, ...]) -> bool:
        """Whether it computes otherwise than Keras's layer, whatever the shape of the inputs."""
        ends_at_6 = self.max_value == 6 and not self.negative_slope and not self.threshold
        return ends_at_6 and _may_be_native(self, keras.activations.relu6)

    def call(self, inputs: Any) -> Any:
        """Cut each number off at 0 and at 6; the shape stays."""
        if not self.suits(()):
            return super().call(inputs)
        return activate(self, keras.activations.relu6, inputs)


def activate(layer: Any, function: Callable[[Any], Any], numbers: Any) -> Any:
    """Compute a layer's activation: in C++ where the layer is called in training and there is code for it.

    Args:
        layer: the one that is being called.
        function: of `keras.activations`, or any other.
        numbers: a tensor of any shape.

    Returns:
        What the function makes of them.
    """
    is_native = (
        _may_be_native(layer, function)
        and tf.is_tensor(numbers)
        and numbers.dtype.name in xla_function.TYPES
        and in_training(layer)
        and xla_function.is_there(SOURCE)
    )
    if not is_native:
        return function(numbers)
    return _native(_name_of(function), xla_function.TYPES[numbers.dtype.name])(numbers)


def _name_of(function: Any) -> str:
    """What the code of a function of Keras's is called; empty: there is none."""
    return next((name for known, name in FUNCTIONS.items() if known is function), "")


def _may_be_native(layer: Any, function: Any) -> bool:
    return bool(_name_of(function)) and layer.compute_dtype in xla_function.TYPES


@functools.cache
def _native(name: str, kind: str) -> Callable[[Any], Any]:
    """An activation in C++, of numbers of any shape."""
    formulas = next(function for function, known in FUNCTIONS.items() if known == name)

    @xla_function.compiled
    def forward(numbers: Any) -> Any:
        (result,) = xla_function.call(f"tfperf_{name}_{kind}", [numbers], [0])
        return result

    @xla_function.compiled
    def backward(upstream: Any, numbers: Any) -> Any:
        return xla_function.call(f"tfperf_gradient_of_{name}_{kind}", [upstream, numbers], [1])

    gradients_of = xla_function.gradients_by(backward, formulas)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def function(numbers: Any) -> Any:
        result = forward(tf.stop_gradient(numbers))
        # The slope of ReLU6 at its result is that at its input, which then need not be kept
        kept = result if name == "relu6" else numbers
        return result, lambda upstream: gradients_of(upstream, kept)

    def activated(numbers: Any) -> Any:
        return tf.reshape(function(tf.reshape(numbers, [-1])), tf.shape(numbers))

    return activated
