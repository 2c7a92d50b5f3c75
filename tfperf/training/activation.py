"""Activations that are computed, and differentiated, in one pass over their numbers."""

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfperf.training import xla_function
from tfperf.training.gradients import gradients_by, with_gradient
from tfperf.training.saved_form import in_training, saved_as

__all__ = ["CompiledActivation", "CompiledReLU", "activate"]

SOURCE = "activation"

FUNCTIONS: dict[Any, str] = {
    keras.activations.gelu: "gelu",
    keras.activations.hard_silu: "hard_silu",
    keras.activations.relu: "relu",
    keras.activations.relu6: "relu6",
    keras.activations.silu: "silu",
}
"""Keras's functions, with their defaults -> what their code in C++ is called."""

CUT_OFF = ("relu", "relu6")
"""Those for which TensorFlow's own code is as fast in float32."""

RELUS = {None: keras.activations.relu, 6: keras.activations.relu6}
"""The largest value of Keras's layer `ReLU` -> its function."""


@saved_as(keras.layers.Activation)
class CompiledActivation(keras.layers.Activation):  # type: ignore[misc]
    """Keras's `Activation` of GELU, SiLU, hard SiLU or a ReLU, with C++ that is compiled on this machine in training.

    As Keras has them, the gradient alone is up to ten operations, each of which reads and writes all numbers, and
    rounds them where they are in bfloat16. In C++ it is one pass, in float32 within. GELU is within 5e-7 of the exact
    one. A plain ReLU stays TensorFlow's forward, which runs it as part of what is before it; its gradient in bfloat16
    is in C++. Arguments and the saved form are Keras's. Left to Keras: other functions, ReLUs in float32, float16,
    GPUs, where there is no C++ compiler, and outside training, so that what is exported needs nothing of this package.

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
    """Keras's `ReLU`, open or up to 6, as `CompiledActivation` computes it; all others are left to Keras."""

    def suits(self, _shape: tuple[int | None, ...]) -> bool:
        """Whether it computes otherwise than Keras's layer, whatever the shape of the inputs."""
        usual = self.max_value in RELUS and not self.negative_slope and not self.threshold
        return usual and _may_be_native(self, RELUS[self.max_value])

    def call(self, inputs: Any) -> Any:
        """Cut each number off at 0, and at the largest value; the shape stays."""
        if not self.suits(()):
            return super().call(inputs)
        return activate(self, RELUS[self.max_value], inputs)


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
        and isinstance(numbers, tf.Tensor)
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
    name = _name_of(function)
    return bool(name) and layer.compute_dtype in (("bfloat16",) if name in CUT_OFF else xla_function.TYPES)


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

    gradients_of = gradients_by(backward, formulas)

    def activated(numbers: Any) -> Any:
        if name == "relu":
            result = tf.nn.relu(numbers)
        else:
            result = tf.reshape(forward(tf.reshape(tf.stop_gradient(numbers), [-1])), tf.shape(numbers))
        # What is cut off has the same slope at its result as at its input, which then need not be kept
        kept = tf.stop_gradient(result) if name in CUT_OFF else numbers

        def gradient(upstream: Any) -> list[Any]:
            (found,) = gradients_of(*(tf.reshape(one, [-1]) for one in (upstream, kept)))
            return [tf.reshape(found, tf.shape(numbers))]

        return result, gradient

    found: Callable[..., Any] = tf.custom_gradient(activated)
    return with_gradient(activated) if name == "relu" else found
