"""Operations of TensorFlow that tf2onnx does not know, in ONNX's own: to import this tells tf2onnx.

It would write TensorFlow's into the file, which nothing loads: Keras's "gelu" has an Erfc.
"""

from typing import Any

import numpy as np
from tf2onnx import utils
from tf2onnx.handler import tf_op

__all__ = ["Erfc", "Expm1", "Log1p"]


@tf_op("Erfc")
class Erfc:
    """1 - erf(x), as erf(-x) + 1."""

    @classmethod
    def version_9(cls, ctx: Any, node: Any, **_: Any) -> None:
        """Make erf(x / (1 / c)) + 1 of gelu's x * erfc(-x * c) / 2: ONNX Runtime runs that as one operation."""
        given = node.inputs[0]
        if given.type == "Mul" and given.inputs[0].type == "Neg" and given.inputs[1].is_const():
            scale = given.inputs[1].get_tensor_value(as_list=False)
            divisor = ctx.make_const(utils.make_name(node.name), 1 / scale)
            inside = ctx.make_node("Div", [given.inputs[0].input[0], divisor.output[0]])
        else:
            inside = ctx.make_node("Neg", node.input)
        node.type = "Add"
        ctx.replace_inputs(node, [ctx.make_node("Erf", inside.output).output[0], _one(ctx, node)])


@tf_op("Expm1")
class Expm1:
    """exp(x) - 1, as of celu; near 0 less exact than TensorFlow's, by what float32 tells apart beside 1."""

    @classmethod
    def version_7(cls, ctx: Any, node: Any, **_: Any) -> None:
        """Since then Sub takes a number beside an array."""
        node.type = "Sub"
        ctx.replace_inputs(node, [ctx.make_node("Exp", node.input).output[0], _one(ctx, node)])


@tf_op("Log1p")
class Log1p:
    """log(1 + x); near 0 as exact as Expm1."""

    @classmethod
    def version_7(cls, ctx: Any, node: Any, **_: Any) -> None:
        """Since then Add takes a number beside an array."""
        node.type = "Log"
        ctx.replace_inputs(node, [ctx.make_node("Add", [node.input[0], _one(ctx, node)]).output[0]])


def _one(ctx: Any, node: Any) -> str:
    dtype = utils.map_onnx_to_numpy_type(ctx.get_dtype(node.output[0]))
    one: str = ctx.make_const(utils.make_name(node.name), np.array(1, dtype)).output[0]
    return one
