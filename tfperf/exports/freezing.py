"""Functions whose variables have become constants."""

from typing import Any

import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from tfperf.errors import EngineError

__all__ = ["with_constants"]


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
