"""Kinds of kernels, and the sizes that decide how long one of a kind takes."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfperf.hardware.counting.operation_flops import ELEMENTWISE, REDUCTIONS

__all__ = ["ACTIVATIONS", "FEW_CHANNELS", "Kind", "Spot", "place_of"]

FEW_CHANNELS = 8
"""A convolution of fewer channels, as of an image's colours, is a kind of its own."""

Shape = tuple[int, ...]


class Kind(NamedTuple):
    """What decides which code runs; all kernels of a kind differ in their sizes alone."""

    family: str
    """Which graph it is measured in."""
    type: str
    """As TensorFlow calls it."""
    dtype: str
    details: tuple[str, ...] = ()
    """As the size of a convolution's window, an equation, and what else the kernel does: "BiasAdd", "Relu"."""

    def __str__(self) -> str:
        return " ".join((self.family, self.type, self.dtype, *self.details))


class Spot(NamedTuple):
    """A kind with sizes. With the first of them the work grows in proportion."""

    kind: Kind
    sizes: tuple[float, ...]


def place_of(operation: Any) -> Spot | None:
    """Where an operation lies among the kinds; None: it is of none of them.

    Args:
        operation: a `Ran`.
    """
    try:
        return _place_of(operation)
    except (IndexError, ZeroDivisionError):  # of shapes that no such kernel has
        return None


def _place_of(operation: Any) -> Spot | None:
    kind, fused = operation.type, tuple(one for one in operation.fused if one == "BiasAdd" or one in ACTIVATIONS)
    if not operation.outputs or not operation.outputs[0].dtype.is_floating:
        return None
    dtype = operation.outputs[0].dtype.name
    taken = [tuple(spec.shape.as_list()) for spec in operation.inputs]
    given = tuple(operation.outputs[0].shape.as_list())
    if not math.prod(given):
        return None
    if kind == "MatMul":
        inner = taken[0][0 if operation.get_attr("transpose_a") else 1]
        return Spot(Kind("matrix", kind, dtype, fused), (given[0], math.sqrt(inner * given[1])))
    if kind.startswith("BatchMatMul"):
        inner = taken[0][-2 if operation.get_attr("adj_x") else -1]
        if math.prod(taken[1][:-2]) == 1:
            return Spot(Kind("matrix_shared", kind, dtype), (math.prod(given[:-1]), math.sqrt(inner * given[-1])))
        side = (given[-2] * given[-1] * inner) ** (1 / 3)
        return Spot(Kind("matrices", kind, dtype), (math.prod(given[:-2]), side))
    if kind == "Einsum" and len(taken) == 2:
        return _einsum_place(operation.get_attr("equation").decode(), taken, dtype)
    if kind in WINDOWED:
        image, window, batch = WINDOWED[kind](taken, given)
        channels_in, channels = window[-2:]
        if kind.endswith(("Input", "Filter")):
            return Spot(
                Kind("gradient", kind, dtype, (f"{window[0]}x{window[1]}",)),
                (batch, math.sqrt(channels_in * channels), image),
            )
        details = (f"{window[0]}x{window[1]}", *fused)
        if kind.startswith("Depthwise"):
            return Spot(Kind("depthwise", kind, dtype, details), (batch, channels_in, image))
        if channels_in < FEW_CHANNELS:
            few = Kind("first_convolution", kind, dtype, (f"{window[0]}x{window[1]}", f"of {channels_in}", *fused))
            return Spot(few, (batch, channels, image))
        return Spot(Kind("convolution", kind, dtype, details), (batch, math.sqrt(channels_in * channels), image))
    return _simple_place(kind, taken, given, dtype)


def _simple_place(kind: str, taken: Sequence[Shape], given: Shape, dtype: str) -> Spot | None:
    """Of what is no product."""
    elements, channels = math.prod(given), given[-1] if given else 1
    if kind == "Softmax":
        return Spot(Kind("softmax", kind, dtype), (elements, channels))
    if kind == "Transpose":
        return Spot(Kind("transpose", kind, dtype), (elements,))
    if kind in REDUCED and taken and math.prod(taken[0]):
        along = "last" if given[-1:] != taken[0][-1:] else "others"
        return Spot(Kind("reduction", kind, dtype, (along,)), (math.prod(taken[0]), taken[0][-1] if taken[0] else 1))
    if kind == "BiasAdd":
        return Spot(Kind("broadcast", kind, dtype, ("channels",)), (elements, channels))
    if kind == "AddN":
        return Spot(Kind("pointwise", kind, dtype, (str(len(taken)),)), (elements,))
    if kind not in ELEMENTWISE or not taken:
        return None
    smaller = [shape for shape in taken[:2] if math.prod(shape) < elements]
    if not smaller or all(math.prod(shape) == 1 for shape in smaller):
        form = ("scalar",) if smaller else ()
        return Spot(Kind("pointwise", kind, dtype, (str(len(taken)), *form)), (elements,))
    rows = smaller[0][-1:] == (1,) and channels > 1
    return Spot(Kind("broadcast", kind, dtype, ("rows" if rows else "channels",)), (elements, channels))


def _einsum_place(equation: str, taken: Sequence[Shape], dtype: str) -> Spot | None:
    if "." in equation:
        return None
    (left, right), answer = equation.split("->")[0].split(","), equation.split("->")[1]
    sizes = dict(zip(left + right, (*taken[0], *taken[1]), strict=True))
    count = math.prod(sizes[one] for one in answer if one in left and one in right)
    side = (math.prod(sizes.values()) / count) ** (1 / 3)
    return Spot(Kind("einsum", "Einsum", dtype, (equation,)), (count, side))


def _forward(taken: Sequence[Shape], given: Shape) -> tuple[float, Shape, int]:
    """Side of the answer's image, the window, and the batch."""
    return math.sqrt(given[1] * given[2]), taken[1], given[0]


def _to_inputs(taken: Sequence[Shape], _given: Shape) -> tuple[float, Shape, int]:
    return math.sqrt(taken[2][1] * taken[2][2]), taken[1], taken[2][0]


def _to_weights(taken: Sequence[Shape], given: Shape) -> tuple[float, Shape, int]:
    return math.sqrt(taken[2][1] * taken[2][2]), given, taken[2][0]


WINDOWED: Mapping[str, Callable[[Sequence[Shape], Shape], tuple[float, Shape, int]]] = {
    "Conv2D": _forward,
    "Conv2DBackpropInput": _to_inputs,
    "Conv2DBackpropFilter": _to_weights,
    "DepthwiseConv2dNative": _forward,
}

REDUCED = REDUCTIONS & {"Sum", "Mean", "Max", "Min"}

ACTIVATIONS: Mapping[str, Callable[[Any], Any]] = {
    "Relu": tf.nn.relu,
    "Relu6": tf.nn.relu6,
    "Elu": tf.nn.elu,
    "LeakyRelu": tf.nn.leaky_relu,
    "Tanh": tf.tanh,
    "Sigmoid": tf.sigmoid,
}
