"""What a graph computes in, read from the graph."""

from collections import Counter
from typing import Any

import tensorflow as tf

from tfperf.errors import EngineError

__all__ = ["prove_precision"]

HEAVY = ("BatchMatMulV2", "BatchMatMulV3", "Conv2D", "Conv3D", "DepthwiseConv2dNative", "Einsum", "MatMul")
"""The operations in which nets spend their time, and which precisions are about."""


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
