"""A net's forward and training pass as functions with known shapes: for TensorFlow's graph, and for XLA."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfperf.errors import HardwareError, shortened
from tfperf.exports.servable import Servable
from tfperf.hardware.counting.hlo_text import Program, read_program

__all__ = ["forward_pass", "program_of", "training_pass"]


def forward_pass(servable: Servable) -> Any:
    """The net as a function of its input tensors, by position."""

    def forward(*tensors: Any) -> list[Any]:
        named = {form.name: tensor for form, tensor in zip(servable.signature.inputs, tensors, strict=True)}
        return list(servable.call(**named).values())

    return forward


def training_pass(servable: Servable) -> Any:
    """The gradients of the mean of squares of all outputs, for all weights: a loss that adds nearly no work.

    What runs it moves the statistics of normalizations and the seeds of dropout, as training does;
    `exports.keras_nets.restoring` gives them back.

    Raises:
        HardwareError: it is no Keras model, or has no weights to train.
    """
    net = servable.net
    if net is None:
        raise HardwareError(f"expected a Keras model, whose training can be traced; '{servable.name}' is none")
    if not net.trainable_variables:
        raise HardwareError(f"expected weights to train; the net '{servable.name}' has none")

    def train(*tensors: Any) -> list[Any]:
        variables = [variable.value for variable in net.trainable_variables]
        with tf.GradientTape() as tape:
            answers = keras.tree.flatten(net(*servable.pack(tensors), training=True))
            floats = [answer for answer in answers if answer.dtype.is_floating]
            loss = tf.add_n([tf.reduce_mean(tf.square(tf.cast(answer, tf.float32))) for answer in floats])
        return [loss, *(one for one in tape.gradient(loss, variables) if one is not None)]

    return train


def program_of(function: Any, arrays: Sequence[Any], stage: str = "hlo") -> Program:
    """What XLA is given, or makes of it (stage "optimized_hlo").

    Raises:
        HardwareError: XLA has no equivalent of one of its operations.
    """
    compiled = tf.function(function, jit_compile=True)
    try:
        text = compiled.experimental_get_compiler_ir(*arrays)(stage=stage)
    except (tf.errors.OpError, ValueError) as error:
        raise HardwareError(f"XLA cannot compile it: {shortened(error)}") from error
    return read_program(text)
