"""Floating-point operations of TensorFlow's operations, from the shapes of what they take and give."""

import math
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["flops_of", "is_product"]

Shape = tuple[int, ...]


def flops_of(operation: Any) -> int:
    """How many: a multiply-add is two; an addition, a comparison or a function as exp is one.

    Positions of a convolution that lie in its padding count as all others, as wherever such numbers are given.

    Args:
        operation: a `tf.Operation` whose shapes are known.

    Returns:
        0 for what only moves data, and for operations on whole numbers and truth values.
    """
    if operation.type in PRODUCTS:
        return PRODUCTS[operation.type](operation)
    if not any(tensor.dtype.is_floating for tensor in operation.outputs):
        return 0
    if operation.type in REDUCTIONS:
        return math.prod(_input(operation, 0))
    if operation.type in ELEMENTWISE:
        return math.prod(_output(operation))
    if operation.type == "AddN":
        return (len(operation.inputs) - 1) * math.prod(_output(operation))
    if operation.type in PER_ELEMENT:
        return PER_ELEMENT[operation.type] * math.prod(_input(operation, 0))
    if operation.type in POOLINGS:
        window: int = math.prod(operation.get_attr("ksize"))
        return window * math.prod(POOLINGS[operation.type](operation))
    return 0


def is_product(operation: Any) -> bool:
    """Whether it is a matrix product or a convolution, which have kernels of their own."""
    return operation.type in PRODUCTS


def _input(operation: Any, index: int) -> Shape:
    return tuple(operation.inputs[index].shape.as_list())


def _output(operation: Any) -> Shape:
    return tuple(operation.outputs[0].shape.as_list())


def _matrix_product(operation: Any) -> int:
    transposed = "transpose_a" if operation.type == "MatMul" else "adj_x"
    inner = _input(operation, 0)[-2 if operation.get_attr(transposed) else -1]
    return 2 * math.prod(_output(operation)) * inner


def _einsum(operation: Any) -> int:
    """One multiply-add for each combination of all indices."""
    if len(operation.inputs) != 2:
        return 0
    terms = operation.get_attr("equation").decode().split("->")[0].split(",")
    sizes: dict[str, int] = {}
    for place, term in enumerate(terms):
        shape = _input(operation, place)
        head, _, tail = term.partition("...")
        left = len(shape) - len(head) - len(tail)
        letters = [*head, *(f"...{one}" for one in range(left)), *tail]
        sizes |= dict(zip(letters, shape, strict=True))
    return 2 * math.prod(sizes.values())


def _convolution(filters: int | None, positions: int | None) -> Callable[[Any], int]:
    """One multiply-add for each position of the forward answer and each weight that it sees.

    Args:
        filters: input with the weights, (height, width, channels of a group, filters); None: they are the output.
        positions: input that has the form of the forward answer; None: the output has it.
    """

    def flops(operation: Any) -> int:
        weights = _output(operation) if filters is None else _input(operation, filters)
        answer = _output(operation) if positions is None else _input(operation, positions)
        return 2 * math.prod(answer) * math.prod(weights[:-1])

    return flops


def _depthwise(filters: int | None, positions: int | None) -> Callable[[Any], int]:
    """Count as above; each output sees the weights of one channel."""

    def flops(operation: Any) -> int:
        weights = _output(operation) if filters is None else _input(operation, filters)
        answer = _output(operation) if positions is None else _input(operation, positions)
        return 2 * math.prod(answer) * math.prod(weights[:-2])

    return flops


PRODUCTS: Mapping[str, Callable[[Any], int]] = {
    "MatMul": _matrix_product,
    "BatchMatMul": _matrix_product,
    "BatchMatMulV2": _matrix_product,
    "BatchMatMulV3": _matrix_product,
    "Einsum": _einsum,
    "Conv2D": _convolution(1, None),
    "Conv3D": _convolution(1, None),
    "Conv2DBackpropInput": _convolution(1, 2),
    "Conv3DBackpropInputV2": _convolution(1, 2),
    "Conv2DBackpropFilter": _convolution(None, 2),
    "Conv3DBackpropFilterV2": _convolution(None, 2),
    "DepthwiseConv2dNative": _depthwise(1, None),
    "DepthwiseConv2dNativeBackpropInput": _depthwise(1, 2),
    "DepthwiseConv2dNativeBackpropFilter": _depthwise(None, 2),
}

REDUCTIONS = {"Sum", "Mean", "Max", "Min", "Prod", "EuclideanNorm", "L2Loss", "BiasAddGrad"}

PER_ELEMENT: Mapping[str, int] = {
    "Softmax": 5,  # the largest, less it, exp, the sum, by it
    "LogSoftmax": 5,
    "SoftmaxCrossEntropyWithLogits": 8,
    "SparseSoftmaxCrossEntropyWithLogits": 8,
    "FusedBatchNormV3": 2,  # one multiply-add with what is known before; in training the statistics come on top
    "FusedBatchNormGradV3": 8,
}

POOLINGS: Mapping[str, Callable[[Any], Shape]] = {
    "MaxPool": _output,
    "AvgPool": _output,
    "MaxPoolGrad": lambda operation: _input(operation, 2),
    "AvgPoolGrad": lambda operation: _input(operation, 1),
}

ELEMENTWISE = frozenset(
    {
        *("Abs", "Add", "AddV2", "BiasAdd", "Cos", "Div", "DivNoNan", "Elu", "EluGrad", "Erf", "Exp", "Expm1"),
        *("FloorDiv", "FloorMod", "LeakyRelu", "LeakyReluGrad", "Log", "Log1p", "Maximum", "Minimum", "Mod", "Mul"),
        *("MulNoNan", "Neg", "Pow", "RealDiv", "Reciprocal", "Relu", "Relu6", "Relu6Grad", "ReluGrad", "Rsqrt"),
        *("RsqrtGrad", "Selu", "Sigmoid", "SigmoidGrad", "Sign", "Sin", "Softplus", "SoftplusGrad", "Softsign"),
        *("Sqrt", "SqrtGrad", "Square", "SquaredDifference", "Sub", "Tanh", "TanhGrad", "Xdivy", "Xlogy"),
    }
)
