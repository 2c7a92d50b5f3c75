"""An operation as TensorFlow ran it: what it took, from where, what it gave, and how long it was at it."""

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import tensorflow as tf

from tfperf.hardware.counting.work import Work

__all__ = ["CompiledFunction", "KernelInput", "KernelRun", "TensorOrigin", "kernel_run"]

VARIANTS = re.compile(r"^_(?:Mkl(?:Native)?(?:PadWith)?(?:Fused)?|Fused)(?=[A-Z])|WithBias$|(?<=Norm)Ex$")
"""What TensorFlow and oneDNN put around the name of a kernel that does the same, and perhaps more."""

NORMS = ("BatchNorm", "BatchNormV2", "BatchNormV3")
"""What that leaves of batch normalization, which has its "Fused" from the beginning."""

HANDED_ON = frozenset({"Identity", "ReadVariableOp"})
"""Operations whose answer is what they took."""


class TensorOrigin(StrEnum):
    """Where a tensor comes from that an operation takes."""

    CONSTANT = "constant"
    VARIABLE = "variable"
    """The variable itself, to read parts of it, or to change it."""
    WEIGHT = "weight"
    """What a variable holds."""
    GIVEN = "given"
    """By another operation, just before."""


class KernelInput(NamedTuple):
    """A tensor that an operation takes."""

    spec: tf.TensorSpec
    origin: TensorOrigin
    source: Any
    """The `NodeDef` from which it comes: a constant, a variable, or whatever gave it."""

    @property
    def bytes(self) -> int:
        """The bytes of the tensor; 0 for a variable itself."""
        return 0 if self.spec.dtype == tf.resource else int(self.spec.shape.num_elements() * self.spec.dtype.size)


class CompiledFunction(NamedTuple):
    """A function that XLA compiles, which runs as one kernel."""

    work: Work
    library: Any
    """The `FunctionDefLibrary` in which it is."""

    def definition(self, name: str) -> Any:
        """The `FunctionDef` of a function in the library."""
        return next(one for one in self.library.function if one.signature.name == name)


class KernelRun(NamedTuple):
    """One operation as it ran, with the face of a `tf.Operation` that `flops_of` and `work_of` look at."""

    name: str
    kernel: str
    """The kernel's name in TensorFlow: "_MklNativeFusedConv2D"."""
    taken: tuple[KernelInput, ...]
    outputs: tuple[tf.TensorSpec, ...]
    attributes: Mapping[str, Any]
    seconds: float
    """Inside of the kernel, in all turns of a loop together: the shortest of the traced ones."""
    usual: float
    """The same in a usual run: all of them add up to the median of the runs, as calls are told by theirs."""
    turns: float = 1.0
    """How often it ran in a run."""
    unknown: int = 0
    """Tensors that it takes beside `taken`, of which nothing was told: in a loop those from outside."""
    compiled: CompiledFunction | None = None
    """The function, where it calls one that XLA compiles; None: it is a kernel of TensorFlow, or calls others."""

    @property
    def inputs(self) -> tuple[tf.TensorSpec, ...]:
        """Shapes and types of what it takes."""
        return tuple(one.spec for one in self.taken)

    @property
    def type(self) -> str:
        """The operation that it does first: "Conv2D"."""
        plain = VARIANTS.sub("", self.kernel)
        return "FusedBatchNormV3" if plain in NORMS else plain

    @property
    def fused(self) -> tuple[str, ...]:
        """What it does beside that: ("BiasAdd", "Relu")."""
        if self.kernel.endswith("WithBias"):
            return ("BiasAdd",)
        listed = self.attributes["fused_ops"].list.s if "fused_ops" in self.attributes else ()
        return tuple(one.decode() for one in listed)

    def get_attr(self, name: str) -> Any:
        """An attribute, as a `tf.Operation` gives it.

        Raises:
            ValueError: it has none of this name.
        """
        if name not in self.attributes:
            raise ValueError(f"expected an attribute of {self.kernel}. Received: {name}")
        value = self.attributes[name]
        kind = value.WhichOneof("value")
        if kind == "list":
            return list(value.list.i or value.list.s or value.list.f or value.list.b)
        return getattr(value, kind)


def kernel_run(
    node: Any,
    nodes: Mapping[str, Any],
    given: Mapping[str, Sequence[tf.TensorSpec]],
    seconds: float,
    usual: float,
    turns: float = 1.0,
    compiled: CompiledFunction | None = None,
) -> KernelRun:
    """What a node of a graph did in a run.

    Args:
        node: a `NodeDef` of the graph that ran.
        nodes: all of them, by name.
        given: what each has given.
        compiled: the function that it calls, where XLA compiles it.
    """
    taken = _inputs(node, nodes, given)
    unknown = sum(not name.startswith("^") for name in node.input) - len(taken)
    return KernelRun(
        node.name, node.op, taken, tuple(given[node.name]), node.attr, seconds, usual, turns, unknown, compiled
    )


def _inputs(
    node: Any, nodes: Mapping[str, Any], given: Mapping[str, Sequence[tf.TensorSpec]]
) -> tuple[KernelInput, ...]:
    found = []
    for name in node.input:
        giver, _, place = name.partition(":")
        specs = given.get(giver, ())
        if not name.startswith("^") and giver in nodes and int(place or 0) < len(specs):
            found.append(KernelInput(specs[int(place or 0)], *_origin(nodes[giver], nodes)))
    return tuple(found)


def _origin(source: Any, nodes: Mapping[str, Any]) -> tuple[TensorOrigin, Any]:
    """Where a node's answer comes from, through those that only hand it on."""
    origins = {"Const": TensorOrigin.CONSTANT, "VarHandleOp": TensorOrigin.VARIABLE}
    read = False
    while source.op in HANDED_ON and source.input[0].partition(":")[0] in nodes:
        read = read or source.op == "ReadVariableOp"
        source = nodes[source.input[0].partition(":")[0]]
    return (TensorOrigin.WEIGHT, source) if read else (origins.get(source.op, TensorOrigin.GIVEN), source)
