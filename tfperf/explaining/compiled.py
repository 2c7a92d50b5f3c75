"""What XLA makes of a function, from the compiler's own output."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from numpy.typing import NDArray

from tfperf.errors import HardwareError
from tfperf.explaining.explanation import Xla
from tfperf.hardware.counting.hlo_work import hlo_work
from tfperf.hardware.counting.tracing import program_of
from tfperf.hardware.counting.work import Work
from tfperf.measure.words import escape_unprintable

__all__ = ["not_asked", "xla_of"]


def xla_of(
    function: Callable[..., Any], arrays: Sequence[NDArray[Any]], before: Sequence[Work]
) -> tuple[Xla, tuple[Work, ...]]:
    """Whether XLA compiles it, how many kernels and fusions that gives, and what each kernel moves.

    Args:
        function: takes tensors by position.
        before: its operations, as the graph has them.
    """
    found = not_asked(before, "")
    try:
        program = program_of(function, [tf.constant(array) for array in arrays], stage="optimized_hlo")
        fusions = sum(one.opcode == "fusion" for computation in program.computations.values() for one in computation)
        found = found.model_copy(update={"compiled": True, "fusions": fusions})
        kernels = tuple(hlo_work(program))
    except HardwareError as error:
        return found.model_copy(update={"reason": escape_unprintable(error)[:300]}), ()
    after = Work.sum("after", kernels)
    return found.model_copy(update={"kernels": len(kernels), "bytes_after": after.bytes}), kernels


def not_asked(before: Sequence[Work], reason: str) -> Xla:
    """Tell what XLA would begin with, and why it has made nothing of it.

    Args:
        before: the net's operations, as the graph has them.
        reason: why it was not asked.
    """
    whole = Work.sum("before", before)
    return Xla(
        compiled=False,
        reason=reason,
        operations=whole.operations,
        kernels=0,
        fusions=0,
        bytes_before=whole.bytes,
        bytes_after=0,
    )
