"""How long a kernel takes by itself: the same kernel, with tensors of the same shapes, in a graph of its own."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfperf.hardware.kernels.kernel_run import KernelInput, KernelRun, TensorOrigin
from tfperf.hardware.kernels.traced import Session, inside
from tfperf.measure.clock import wall_clock

__all__ = ["Among", "alone", "can_be_alone"]

TURNS = 3
"""Nodes of the kernel in one graph, of which each is timed."""

SAMPLES = 150
"""Runs of a kernel; fewer of one that takes long. With few, a disturbance of some milliseconds falls on all of them."""

FEWEST_SAMPLES = 9

SECONDS = 0.25
"""After which no further sample is taken."""

WARM_UPS = 2

PLAIN = frozenset({tf.float32, tf.float64, tf.bfloat16, tf.float16, tf.int32, tf.int64, tf.int8, tf.uint8, tf.bool})
"""Types of which any numbers will do."""


class Among(NamedTuple):
    """Where in a run a kernel has its place."""

    beside: int
    """Bytes that are read between two of its runs, as the rest of a net does."""
    first: bool = False
    """Whether nothing runs before it: what waking TensorFlow's threads costs is in its time."""


def can_be_alone(operation: KernelRun) -> bool:
    """Whether a kernel can be run by itself: it takes nothing but plain numbers, constants, and variables."""
    return (
        bool(operation.taken)
        and not operation.unknown
        and all(
            one.origin in (TensorOrigin.CONSTANT, TensorOrigin.VARIABLE) or one.spec.dtype in PLAIN
            for one in operation.taken
        )
    )


def alone(operation: KernelRun, among: Among) -> float:
    """Seconds inside of a kernel that runs by itself, among other traffic: the shortest of many samples.

    On a machine that others use, too, a decile of them may be disturbed in one place and not in another, and the
    shortest is the same in both: see benchmarks/README.md.

    What it takes of variables and constants was last read before that traffic. What others give it, and the memory
    that it gets for its answers, were in use just before, as in a net.

    Args:
        operation: one that can be alone.

    Raises:
        tf.errors.OpError: it cannot be run with any numbers.
        ValueError: TensorFlow takes no such node from outside.
    """
    graph = tf.Graph()
    kernels: list[Any] = []
    sweeps: list[Any] = []
    with graph.as_default(), graph.device("/CPU:0"):
        memory = _variable(tf.TensorSpec([max(1, among.beside // 4)], tf.float32))
        stored = [_stored(one) for one in operation.taken]
        for turn in range(1 if among.first else TURNS):
            with graph.control_dependencies(kernels[-1:]):
                sweeps.append(tf.reduce_max(memory))
            after = tf.constant(0.0) if among.first else sweeps[-1]
            kernels.append(_turn(operation, stored, after, f"turn_{turn}"))
        first_values = tf.compat.v1.global_variables_initializer()
    names = {one.name for one in kernels}
    taken: list[float] = []
    with Session(graph, rewritten=False) as session:
        session.run([first_values])
        for _ in range(WARM_UPS):
            session.run(sweeps)
            session.run(kernels)
        until = wall_clock() + SECONDS
        while len(taken) < FEWEST_SAMPLES or (len(taken) < SAMPLES and wall_clock() < until):
            if among.first:
                session.run(sweeps)  # a run of its own, after which TensorFlow's threads sleep
            taken += [inside(one) for one in session.traced(kernels) if one.node_name in names]
    return min(taken)


def _variable(spec: tf.TensorSpec) -> Any:
    """A variable with numbers that suit most: between 0.5 and 1.5; zeros for whole ones, which may be places."""
    shape = spec.shape.as_list()
    if spec.dtype.is_floating:
        first = tf.cast(tf.random.uniform(shape, 0.5, 1.5, tf.float32), spec.dtype)
    else:
        first = tf.zeros(shape, spec.dtype)
    name = f"variable_{len(tf.compat.v1.global_variables())}"
    return tf.compat.v1.get_variable(name, initializer=first, use_resource=True)


def _stored(taken: KernelInput) -> Any:
    """What is kept from turn to turn of what a kernel takes: a variable; of a constant the tensor."""
    if taken.origin is TensorOrigin.CONSTANT:
        return tf.constant(tf.make_ndarray(taken.source.attr["value"].tensor))
    if taken.origin is TensorOrigin.VARIABLE:
        attributes = taken.source.attr
        shape, dtype = tf.TensorShape(attributes["shape"].shape), tf.dtypes.as_dtype(attributes["dtype"].type)
        return _variable(tf.TensorSpec(shape, dtype))
    return _variable(taken.spec)


def _turn(operation: KernelRun, stored: Sequence[Any], after: Any, scope: str) -> Any:
    """One turn of the kernel, after a sweep through memory; its operation."""
    graph = after.graph
    with graph.control_dependencies([after]):
        taken = [_read(*both) for both in zip(operation.taken, stored, strict=True)]
    given = [place for place, one in enumerate(operation.taken) if one.origin is TensorOrigin.GIVEN]
    numbers = sum(_bytes(spec) for spec in (*operation.outputs, *(operation.inputs[place] for place in given))) // 4
    with graph.control_dependencies([after, *(taken[place] for place in given)]):
        last = tf.fill([max(1, numbers)], 0.0)  # memory that is free by the time the kernel asks for some
    with graph.control_dependencies([last]):
        for place in given:
            taken[place] = _written(taken[place])
    return _kernel(operation, taken, last, scope)


def _read(taken: KernelInput, kept: Any) -> Any:
    """A tensor as a kernel takes it; what others give it in memory of its own."""
    if taken.origin is TensorOrigin.CONSTANT:
        return kept
    if taken.origin is TensorOrigin.VARIABLE:
        return kept.handle
    tensor = kept.read_value()
    return tensor if taken.origin is TensorOrigin.WEIGHT else _written(tensor)


def _written(tensor: Any) -> Any:
    """The same numbers, written anew: in their place, if they are in use nowhere else."""
    if tensor.dtype is tf.bool:
        return tf.raw_ops.LogicalOr(x=tensor, y=False)
    return tf.raw_ops.AddV2(x=tensor, y=tf.zeros([], tensor.dtype))


def _bytes(spec: tf.TensorSpec) -> int:
    return 0 if spec.dtype not in PLAIN else int(spec.shape.num_elements() * spec.dtype.size)


def _kernel(operation: KernelRun, taken: Sequence[Any], after: Any, scope: str) -> Any:
    """The kernel's node, in the graph that is being built; its operation.

    Args:
        taken: tensors.
        after: a tensor that must be there first.
    """
    definition = tf.compat.v1.GraphDef()
    if operation.compiled is not None:
        definition.library.CopyFrom(operation.compiled.library)
    node = definition.node.add(name="kernel", op=operation.kernel)
    for key, value in operation.attributes.items():
        if key != "_class":  # which asks for the device of a node that is not here
            node.attr[key].CopyFrom(value)
    into = {"^after": after}
    definition.node.add(name="after", op="NoOp")
    for place, tensor in enumerate(taken):
        wanted = definition.node.add(name=f"taken_{place}", op="Placeholder")
        wanted.attr["dtype"].type = tensor.dtype.as_datatype_enum
        node.input.append(wanted.name)
        into[f"{wanted.name}:0"] = tensor
    node.input.append("^after")
    return tf.import_graph_def(definition, into, ["kernel"], scope)[0]
