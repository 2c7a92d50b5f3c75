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

__all__ = ["xla_of"]


def xla_of(
    function: Callable[..., Any], arrays: Sequence[NDArray[Any]], before: Sequence[Work]
) -> tuple[Xla, tuple[Work, ...]]:
    """Whether XLA compiles it, how many kernels and fusions that gives, and what each kernel moves.

    Args:
        function: takes tensors by position.
        before: its operations, as the graph has them.
    """
    whole = Work.sum("before", before)
    found = Xla(
        compiled=False, reason="", operations=whole.operations, kernels=0, fusions=0, bytes_before=whole.bytes,
        bytes_after=0,
    )  # fmt: skip
    try:
        program = program_of(function, [tf.constant(array) for array in arrays], stage="optimized_hlo")
        fusions = sum(one.opcode == "fusion" for computation in program.computations.values() for one in computation)
        found = found.model_copy(update={"compiled": True, "fusions": fusions})
        kernels = tuple(hlo_work(program))
    except HardwareError as error:
        return found.model_copy(update={"reason": escape_unprintable(error)[:300]}), ()
    after = Work.sum("after", kernels)
    return found.model_copy(update={"kernels": len(kernels), "bytes_after": after.bytes}), kernels
