"""TensorFlow's graphs: that of a SavedModel's file, and those whose variables have become constants."""

from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from tfperf.errors import EngineError
from tfperf.exports.signature import SIGNATURE_NAME

__all__ = ["read_meta_graph", "tensors_of", "with_constants"]


def read_meta_graph(folder: Path) -> Any:
    """The one MetaGraphDef of a SavedModel: its graph and its signatures."""
    saved = saved_model_pb2.SavedModel()
    saved.ParseFromString((folder / "saved_model.pb").read_bytes())
    (meta_graph,) = saved.meta_graphs
    return meta_graph


def tensors_of(meta_graph: Any) -> dict[str, str]:
    """Input or output -> the tensor of the graph that holds it: {"inputs/x": "serving_default_x:0", ...}."""
    signature = meta_graph.signature_def[SIGNATURE_NAME]
    sides = (("inputs", signature.inputs), ("outputs", signature.outputs))
    return {f"{side}/{name}": info.name for side, infos in sides for name, info in sorted(infos.items())}


def with_constants(traced: Any, *, lower_control_flow: bool = True) -> Any:
    """A concrete function with its variables as constants, which takes and gives its tensors by position.

    Args:
        traced: the concrete function; its outputs are then in the order of their names.
        lower_control_flow: whether loops and branches become switches and merges, which XLA does not take.

    Raises:
        EngineError: some of what it uses, as a lookup table, cannot be a constant.
    """
    frozen = convert_variables_to_constants_v2(traced, lower_control_flow=lower_control_flow)
    # What is left over becomes another input
    if left := [tensor.op.name for tensor in frozen.inputs if tensor.dtype in (tf.resource, tf.variant)]:
        raise EngineError(f"expected variables that can become constants, {', '.join(left[:3])} cannot")
    return frozen
