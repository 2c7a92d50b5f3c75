"""How long a kernel of a kind and a size takes on this machine: measured in a small graph that repeats it."""

import math
from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple

import tensorflow as tf

from tfperf.hardware.kernels.kinds import ACTIVATIONS, FEW_CHANNELS, Kind
from tfperf.hardware.kernels.ran import Traced

__all__ = ["FAMILIES", "Family", "kernel_seconds"]

REPEATS = 6
"""Kernels in the graph: as in a net, one follows another, and finds what it takes in the caches."""

RUNS = 7
"""Of the graph; the time is the median of REPEATS times as many kernels."""

SEQUENCE = 64
"""Rows of each matrix where several share a right one."""

HEADS = (4, 32)
"""Of the array that is transposed: as attention's, (batch, SEQUENCE, heads, width of a head)."""

Sizes = tuple[int, ...]
Shape = tuple[int, ...]


class Family(NamedTuple):
    """How kernels of a family are measured, by sizes that are powers of `steps`."""

    steps: tuple[int, ...]
    least: tuple[int, ...]
    """The smallest sizes that are measured, where a kernel takes hardly more than its start."""
    work: Callable[[Sizes], float]
    """Floating-point operations; of what only moves numbers, WEIGHT for each."""
    shapes: Callable[[Kind, Sizes], list[Shape]]
    """Of the variables that a kernel takes; the first flows from kernel to kernel."""
    apply: Callable[..., Any]
    """From a kind and these variables to the answer."""
    chained: bool = True
    """Each kernel takes what the one before has given; else all take the same."""


def kernel_seconds(kind: Kind, sizes: Sizes) -> float:
    """Seconds inside of a kernel."""
    family = FAMILIES[kind.family]
    shapes = family.shapes(kind, sizes)
    fused = any(one == "BiasAdd" or one in ACTIVATIONS for one in kind.details)
    first, *others = (tf.Variable(tf.zeros(shape, kind.dtype)) for shape in shapes)

    def repeated() -> Any:
        flowing, answers = first.read_value(), []
        for _ in range(REPEATS):
            answers.append(family.apply(kind, flowing, *others))
            flowing = answers[-1] if family.chained else first.read_value()
        return answers

    with Traced(tf.function(repeated).get_concrete_function(), rewritten=fused) as traced:
        found = [one.seconds for one in traced.operations(RUNS) if one.type == kind.type]
    return median(found)


def _with(kind: Kind, answer: Any, *bias: Any) -> Any:
    """What a fused kernel does beside its product."""
    for one in kind.details:
        if one == "BiasAdd":
            answer = tf.nn.bias_add(answer, bias[0])
        elif one in ACTIVATIONS:
            answer = ACTIVATIONS[one](answer)
    return answer


def _bias(kind: Kind, channels: int) -> list[Shape]:
    return [(channels,)] * ("BiasAdd" in kind.details)


def _window(kind: Kind) -> Shape:
    height, width = kind.details[0].split("x")
    return int(height), int(width)


def _image(sizes: Sizes, channels: int) -> Shape:
    return sizes[0], sizes[2], sizes[2], channels


def _first_channels(kind: Kind) -> int:
    return int(kind.details[1].removeprefix("of "))


def _convolve(kind: Kind, x: Any, window: Any, *bias: Any) -> Any:
    """A convolution or one of its gradients, all of stride 1 with as many channels in as out."""
    if kind.type == "Conv2DBackpropInput":
        return tf.raw_ops.Conv2DBackpropInput(
            input_sizes=x.shape, filter=window, out_backprop=x, strides=[1] * 4, padding="SAME"
        )
    if kind.type == "Conv2DBackpropFilter":
        return tf.raw_ops.Conv2DBackpropFilter(
            input=x, filter_sizes=window.shape, out_backprop=x, strides=[1] * 4, padding="SAME"
        )
    if kind.type == "DepthwiseConv2dNative":
        return _with(kind, tf.nn.depthwise_conv2d(x, window, [1] * 4, "SAME"), *bias)
    return _with(kind, tf.nn.conv2d(x, window, 1, "SAME"), *bias)


def _elementwise(kind: Kind, x: Any, *others: Any) -> Any:
    """An operation of TensorFlow's by its name, whatever its arguments are called."""
    if kind.type == "AddN":
        return tf.raw_ops.AddN(inputs=[x, *others])
    operation = getattr(tf.raw_ops, kind.type)
    names = [name for name in operation.__signature__.parameters if name != "name"]
    return operation(**dict(zip(names, (x, *others), strict=False)))


def _pointwise_shapes(kind: Kind, sizes: Sizes) -> list[Shape]:
    others = int(kind.details[0]) - 1
    return [(sizes[0],)] + [() if "scalar" in kind.details else (sizes[0],)] * others


def _broadcast_shapes(kind: Kind, sizes: Sizes) -> list[Shape]:
    elements, channels = sizes
    rows = max(1, elements // channels)
    if kind.type == "BiasAdd":
        return [(rows, channels), (channels,)]
    return [(rows, channels), (rows, 1) if "rows" in kind.details else (1, channels)]


def _transpose_shapes(_: Kind, sizes: Sizes) -> list[Shape]:
    if sizes[0] < SEQUENCE * math.prod(HEADS):
        return [(1, sizes[0], 1, 1)]
    return [(sizes[0] // (SEQUENCE * math.prod(HEADS)), SEQUENCE, *HEADS)]


def _reduce(kind: Kind, x: Any) -> Any:
    axis = [1] if "last" in kind.details else [0]
    return getattr(tf.raw_ops, kind.type)(input=x, axis=axis, keep_dims=False)


def _einsum_shapes(kind: Kind, sizes: Sizes) -> list[Shape]:
    """Each class of indices has one of a size, and others of 1; those of the batch are shared out."""
    count, side = sizes
    (left, right), answer = kind.details[0].split("->")[0].split(","), kind.details[0].split("->")[1]
    batch = [one for one in answer if one in left and one in right]
    classes = (
        [one for one in left if one not in right],
        [one for one in right if one not in left],
        [one for one in left if one in right and one not in answer],
    )
    of = dict.fromkeys(left + right, 1) | {some[0]: side for some in classes if some}
    inner = min(4, count) if len(batch) > 1 else 1
    of |= dict(zip(reversed(batch), (inner, count // inner) if len(batch) > 1 else (count,), strict=False))
    return [tuple(of[one] for one in left), tuple(of[one] for one in right)]


WEIGHT = 256.0
"""What moving a number weighs beside a floating-point operation of a product."""


def _moving(sizes: Sizes) -> float:
    return WEIGHT * sizes[0]


FAMILIES: dict[str, Family] = {
    "matrix": Family(
        (2, 2), (1, 16), lambda s: 2 * s[0] * s[1] ** 2,
        lambda kind, s: [(s[0], s[1]), (s[1], s[1]), *_bias(kind, s[1])],
        lambda kind, x, w, *bias: _with(kind, tf.linalg.matmul(x, w), *bias),
    ),
    "matrix_shared": Family(
        (2, 2), (1, 16), lambda s: 2 * s[0] * s[1] ** 2,
        lambda _, s: [(max(1, s[0] // SEQUENCE), min(s[0], SEQUENCE), s[1]), (1, s[1], s[1])],
        lambda _, x, w: tf.linalg.matmul(x, w),
    ),
    "matrices": Family(
        (2, 2), (1, 16), lambda s: 2 * s[0] * s[1] ** 3,
        lambda _, s: [(s[0], s[1], s[1])] * 2,
        lambda _, x, w: tf.linalg.matmul(x, w),
    ),
    "einsum": Family(
        (2, 2), (1, 16), lambda s: 2 * s[0] * s[1] ** 3, _einsum_shapes,
        lambda kind, x, w: tf.raw_ops.Einsum(inputs=[x, w], equation=kind.details[0]), chained=False,
    ),
    "convolution": Family(
        (2, 2, 2), (1, 8, 1), lambda s: 18 * s[0] * s[1] ** 2 * s[2] ** 2,
        lambda kind, s: [_image(s, s[1]), (*_window(kind), s[1], s[1]), *_bias(kind, s[1])],
        _convolve,
    ),
    "gradient": Family(
        (2, 2, 2), (1, 8, 1), lambda s: 18 * s[0] * s[1] ** 2 * s[2] ** 2,
        lambda kind, s: [_image(s, s[1]), (*_window(kind), s[1], s[1])],
        _convolve, chained=False,
    ),
    "first_convolution": Family(
        (2, 2, 2), (1, 8, 1), lambda s: 18 * s[0] * s[1] * FEW_CHANNELS * s[2] ** 2,
        lambda kind, s: [_image(s, _first_channels(kind)), (*_window(kind), _first_channels(kind), s[1]),
                         *_bias(kind, s[1])],
        _convolve, chained=False,
    ),
    "depthwise": Family(
        (2, 2, 2), (1, 8, 1), lambda s: WEIGHT * s[0] * s[1] * s[2] ** 2,
        lambda kind, s: [_image(s, s[1]), (*_window(kind), s[1], 1), *_bias(kind, s[1])],
        _convolve,
    ),
    "pointwise": Family((4,), (16,), _moving, _pointwise_shapes, _elementwise),
    "broadcast": Family((4, 4), (16, 4), _moving, _broadcast_shapes, _elementwise),
    "softmax": Family(
        (4, 4), (16, 4), _moving, lambda _, s: [(max(1, s[0] // s[1]), s[1])], lambda _, x: tf.nn.softmax(x)
    ),
    "reduction": Family(
        (4, 4), (16, 4), _moving, lambda _, s: [(max(1, s[0] // s[1]), s[1])], _reduce, chained=False
    ),
    "transpose": Family(
        (4,), (16,), _moving,
        _transpose_shapes,
        lambda _, x: tf.transpose(x, [0, 2, 1, 3]), chained=False,
    ),
}  # fmt: skip
