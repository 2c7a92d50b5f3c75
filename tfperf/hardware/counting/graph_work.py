"""Arithmetic and traffic of a net, counted in its TensorFlow graph."""

import math
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.function_def_to_graph import function_def_to_graph

from tfperf.errors import HardwareError
from tfperf.hardware.counting.operation_flops import flops_of, is_product
from tfperf.hardware.counting.work import Work

__all__ = ["VIEWS", "called_work", "graph_work", "work_of"]

VIEWS = frozenset(
    {
        *("Const", "Placeholder", "PlaceholderWithDefault", "VarHandleOp", "ReadVariableOp", "Identity", "IdentityN"),
        *("Reshape", "Squeeze", "ExpandDims", "StopGradient", "PreventGradient", "CheckNumerics", "Assert", "NoOp"),
        *("Shape", "ShapeN", "Size", "Rank", "BroadcastArgs", "BroadcastGradientArgs", "InvertPermutation"),
    }
)
"""Operations that give what they take, or only look at its form: no data moves."""

PARTS = frozenset({"Slice", "StridedSlice", "Gather", "GatherV2", "GatherNd", "ResourceGather"})
"""Operations that read only as much as they give."""

CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})

LOOPS = frozenset({"While", "StatelessWhile", "If", "StatelessIf", "Case", "StatelessCase"})


def graph_work(traced: Any) -> list[Work]:
    """What each operation of a function computes and moves, under its name.

    Each tensor that an operation takes is read once, each that it gives is written once, as by kernels that are not
    fused. Reshaping and reading a variable move nothing; broadcasting reads what is broadcast.

    Args:
        traced: a concrete function whose shapes are known: traced with a batch size.

    Raises:
        HardwareError: a shape is not known, or there are loops or branches, whose turns only a run can tell.
    """
    return [work_of(name, operation) for name, operation in _operations(traced.graph) if operation.type not in VIEWS]


def called_work(call: Any) -> Work:
    """What a function that XLA compiles computes and moves, as one kernel: it reads inputs and variables once.

    Args:
        call: a `tf.Operation` that calls it, whose shapes are known.

    Raises:
        HardwareError: as `graph_work`.
    """
    inside = list(_operations(_body(call), f"{call.name}/"))
    parts = [work_of(name, operation) for name, operation in inside if operation.type not in VIEWS]
    weights = [operation.outputs[0] for _, operation in inside if operation.type == "ReadVariableOp"]
    return Work(
        name=call.name[-200:],
        flops=sum(part.flops for part in parts),
        products=sum(part.products for part in parts),
        read=sum(_bytes(tensor, call.name) for tensor in (*call.inputs, *weights)),
        written=sum(_bytes(tensor, call.name) for tensor in call.outputs),
        operations=1,
    )


def _operations(graph: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """All operations with their names; in place of a call, those of the function that is called."""
    for operation in _needed(graph):
        name = f"{prefix}{operation.name}"
        if operation.type in LOOPS:
            raise HardwareError(f"expected a net without loops and branches, whose work can be counted; {name} is one")
        if operation.type in CALLS:
            yield from _operations(_body(operation), f"{name}/")
        else:
            yield name, operation


def _body(call: Any) -> Any:
    """The graph of the function that is called, as it was traced; where it was not traced here, as it is kept."""
    function = call.graph._get_function(call.get_attr("f").name)
    if (traced := getattr(function, "graph", None)) is not None:
        return traced
    shapes = [tensor.shape for tensor in call.inputs]
    return function_def_to_graph(function.cached_definition, input_shapes=shapes)


def _needed(graph: Any) -> list[Any]:
    """The operations that a run executes: those that its outputs and its effects ask for."""
    waiting = [tensor.op for tensor in graph.outputs] + list(graph.control_outputs)
    needed = set()
    while waiting:
        operation = waiting.pop()
        if operation not in needed:
            needed.add(operation)
            waiting += [tensor.op for tensor in operation.inputs] + list(operation.control_inputs)
    return [operation for operation in graph.get_operations() if operation in needed]


def work_of(name: str, operation: Any) -> Work:
    """What one operation computes and moves.

    Args:
        operation: a `tf.Operation`, or a `KernelRun`: what of it ran.

    Raises:
        HardwareError: a shape is not known.
    """
    written = sum(_bytes(tensor, name) for tensor in operation.outputs)
    taken = {id(tensor): _bytes(tensor, name) for tensor in operation.inputs}
    read, flops = sum(taken.values()), flops_of(operation)
    return Work(
        name=name[-200:],
        flops=flops,
        products=flops if is_product(operation) else 0,
        read=min(read, written) if operation.type in PARTS else read,
        written=written,
        operations=1,
    )


def _bytes(tensor: Any, name: str) -> int:
    maker = getattr(tensor, "op", None)  # none of what ran, whose shapes are all known
    if tensor.dtype in (tf.resource, tf.variant, tf.string) or (maker and maker.type == "BroadcastGradientArgs"):
        return 0
    shape = tensor.shape
    if maker and not shape.is_fully_defined() and maker.type == "Sum":
        shape = _summed(maker)
    if not shape.is_fully_defined():
        made_by = f" ({maker.type})" if maker else ""
        raise HardwareError(f"expected shapes that are known before a run; of {name}{made_by} one is {shape}")
    return int(math.prod(shape.as_list()) * tensor.dtype.size)


def _summed(operation: Any) -> Any:
    """The shape of a sum over what an operand of an arithmetic operation was broadcast along, as gradients have it."""
    taken, axes = operation.inputs
    if axes.op.type != "BroadcastGradientArgs" or not taken.shape.is_fully_defined():
        return operation.outputs[0].shape
    shapes = [tf.get_static_value(one) for one in axes.op.inputs]
    if any(one is None for one in shapes):
        return operation.outputs[0].shape
    along = tf.raw_ops.BroadcastGradientArgs(s0=shapes[0], s1=shapes[1])[axes.value_index].numpy()
    kept = [size for axis, size in enumerate(taken.shape) if axis not in along]
    return tf.TensorShape(kept)
