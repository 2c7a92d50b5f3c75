"""A graph with the variables as constants, called with the least overhead that TensorFlow has in Python."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf
from numpy.typing import NDArray
from tensorflow.core.protobuf import config_pb2

from tfperf.engines.plan import Plan
from tfperf.engines.runner import Runner
from tfperf.engines.tensorflow_runtime import prove_precision, use_threads
from tfperf.exports.graphs import with_constants
from tfperf.exports.servable import Servable
from tfperf.exports.signature import Signature

__all__ = ["convert", "load"]

GRAPH = "graph.pb"

TENSORS = "tensors.json"
"""Input or output -> the tensor of the graph that holds it."""


def convert(servable: Servable, plan: Plan, _examples: Sequence[NDArray[Any]], folder: Path) -> dict[str, str]:
    """Write the graph in the plan's precision, transformed, and which of its tensors are the inputs and outputs."""
    variant = servable.variant(plan.precision, plan.transformations)
    traced = variant.trace()
    frozen, names = with_constants(traced), sorted(traced.structured_outputs)
    definition = frozen.graph.as_graph_def()
    tensors = {f"inputs/{tensor.op.name}": tensor.name for tensor in frozen.inputs}
    tensors |= {f"outputs/{name}": tensor.name for name, tensor in zip(names, frozen.outputs, strict=True)}
    (folder / GRAPH).write_bytes(definition.SerializeToString())
    (folder / TENSORS).write_text(json.dumps(tensors), encoding="utf-8")
    return {
        "precision": prove_precision(definition, plan.precision),
        "constants": "no variables are left",
        **variant.changes,
    }


def load(folder: Path, signature: Signature, plan: Plan, proof: Mapping[str, str]) -> Runner:
    """Load it into a session, whose callable takes and gives arrays in one step of C++."""
    threads = use_threads(plan.threads)
    definition = tf.compat.v1.GraphDef()
    definition.ParseFromString((folder / GRAPH).read_bytes())
    tensors = json.loads((folder / TENSORS).read_text(encoding="utf-8"))
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(definition, name="")
    config = tf.compat.v1.ConfigProto()
    if plan.threads is not None:
        config.intra_op_parallelism_threads, config.inter_op_parallelism_threads = plan.threads, 1
    if plan.threads is not None and _is_plain(definition):  # the caller's thread then runs each operation in turn
        config.experimental.executor_type = "SINGLE_THREADED_EXECUTOR"
    session = tf.compat.v1.Session(config=config, graph=graph)
    ends = config_pb2.CallableOptions(
        feed=[tensors[f"inputs/{form.name}"] for form in signature.inputs],
        fetch=[tensors[f"outputs/{form.name}"] for form in signature.outputs],
    )
    # The public make_callable makes one as well, and adds five times its cost to check and sort what it is given
    call = session._make_callable_from_options(ends)
    return Runner(
        plan,
        signature,
        call,
        proof={**proof, "threads": threads},
        close=session.close,
    )


def _is_plain(definition: Any) -> bool:
    """Whether the graph has no control flow, which the single-threaded executor does not know."""
    loops = {"While", "StatelessWhile", "If", "StatelessIf", "Case", "Switch", "Merge", "Enter"}
    return not any(node.op in loops for node in definition.node)
