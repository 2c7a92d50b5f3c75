"""What is in the file of a SavedModel."""

from pathlib import Path
from typing import Any

from tensorflow.core.protobuf import saved_model_pb2

from tfperf.exports.signature import SIGNATURE_NAME

__all__ = ["read_meta_graph", "tensors_of"]


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
