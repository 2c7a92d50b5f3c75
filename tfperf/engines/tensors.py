"""Calls of TensorFlow functions with arrays, with as little around them as Python allows."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfperf.engines.runner import Arrays
from tfperf.exports.signature import Signature

__all__ = ["call_with_arrays"]


def call_with_arrays(function: Any, signature: Signature) -> Callable[..., Arrays]:
    """A call of a concrete function as one operation, at a fraction of the cost of calling the function itself.

    Args:
        function: concrete; takes and gives the signature's tensors by name.
    """
    order = [tensor.name.split(":")[0] for tensor in function.inputs[: len(signature.inputs)]]
    places = [[form.name for form in signature.inputs].index(name) for name in order]
    captured = list(function.captured_inputs)
    types = [tensor.dtype for tensor in function.outputs]
    names = sorted(function.structured_outputs)
    outputs = [names.index(form.name) for form in signature.outputs]
    operation = tf.raw_ops.StatefulPartitionedCall
    straight = places == sorted(places) and outputs == sorted(outputs)

    def run(*arrays: Any) -> Arrays:
        tensors = operation(args=[*map(tf.convert_to_tensor, arrays), *captured], Tout=types, f=function)
        return tuple(map(np.asarray, tensors))

    def run_in_order(*arrays: Any) -> Arrays:
        answers = run(*(arrays[place] for place in places))
        return tuple(answers[place] for place in outputs)

    return run if straight else run_in_order
