"""What engines that run in TensorFlow's Python share: its threads, calls with arrays, and what a graph computes in."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfperf.engines.runner import Arrays
from tfperf.errors import EngineError, ThreadsError
from tfperf.exports.signature import Signature

__all__ = ["call_with_arrays", "prove_precision", "use_threads"]

HEAVY = ("BatchMatMulV2", "BatchMatMulV3", "Conv2D", "Conv3D", "DepthwiseConv2dNative", "Einsum", "MatMul")
"""The operations in which nets spend their time, and which precisions are about."""


def use_threads(threads: int | None) -> str:
    """Have TensorFlow use so many threads for an operation, and one operation at a time; give what shows it.

    Args:
        threads: None: as it is.

    Raises:
        ThreadsError: TensorFlow has started with another number.
    """
    config = tf.config.threading
    if threads is None:
        return f"TensorFlow's own choice (intra {config.get_intra_op_parallelism_threads() or 'all cores'})"
    try:
        config.set_intra_op_parallelism_threads(threads)
        config.set_inter_op_parallelism_threads(1)
    except RuntimeError as error:
        raise ThreadsError(
            f"expected TensorFlow with {threads} threads, in this process it has started with "
            f"{config.get_intra_op_parallelism_threads() or 'as many as there are cores'}; use a fresh process"
        ) from error
    return f"TensorFlow's pools: intra {config.get_intra_op_parallelism_threads()}, inter 1"


def call_with_arrays(function: Any, signature: Signature) -> Callable[..., Arrays]:
    """A call of a concrete function as one operation, at a fraction of the cost of calling the function itself.

    Args:
        function: concrete; takes and gives the signature's tensors by name.
    """
    # Capital letters are small ones in what TensorFlow has loaded
    order = [tensor.name.split(":")[0].lower() for tensor in function.inputs[: len(signature.inputs)]]
    places = [[form.name.lower() for form in signature.inputs].index(name) for name in order]
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


def prove_precision(graph_def: Any, precision: str) -> str:
    """How many of the heavy operations on floating-point numbers compute in a precision, in words.

    Raises:
        EngineError: there are some, and none of them does: the plan did not take effect.
    """
    nodes = [*graph_def.node, *(node for function in graph_def.library.function for node in function.node_def)]
    types = Counter(kind.name for kind in map(_type_of, (one for one in nodes if one.op in HEAVY)) if kind.is_floating)
    total = sum(types.values())
    if total and not types[precision]:
        found = ", ".join(f"{count} in {name}" for name, count in sorted(types.items()))
        raise EngineError(f"expected matrix products and convolutions in {precision}; the graph has {found}")
    return f"{types[precision]} of {total} matrix products and convolutions in {precision}"


def _type_of(node: Any) -> Any:
    """The type of what a product or a convolution takes; BatchMatMulV3 names that of its first matrix apart."""
    return tf.as_dtype(node.attr["Ta" if "Ta" in node.attr else "T"].type)
