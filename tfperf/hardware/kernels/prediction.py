"""How long a kernel should take on this machine, before it is measured."""

from typing import Any

from tfperf.hardware.ceilings import Ceilings
from tfperf.hardware.counting.graph_work import VIEWS, work_of
from tfperf.hardware.counting.operation_flops import is_product
from tfperf.hardware.counting.work import Work
from tfperf.hardware.kernels.kinds import place_of
from tfperf.hardware.kernels.rates import KernelRates
from tfperf.hardware.kernels.roofline import Cost

__all__ = ["Prediction"]

FREE = VIEWS | {"_Arg", "_Retval", "LoopCond", "Enter", "Exit", "Merge", "Switch", "NextIteration", "AssignVariableOp"}
"""Operations that only hand on what they take."""

CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall", "While", "StatelessWhile", "If", "StatelessIf"})
"""Operations that call functions."""


class Prediction:
    """What this machine gives: ceilings for the roofline, kernels of all kinds and sizes for the times."""

    def __init__(self, ceilings: Ceilings, rates: KernelRates) -> None:
        """Predict for the threads of the rates.

        Raises:
            HardwareError: the ceilings were not measured with so many threads.
        """
        self.ceilings, self.rates = ceilings, rates
        self.threads = rates.threads
        ceilings.peak("float32", self.threads)

    def cost(self, operation: Any, by_kernels: bool = True) -> Cost:
        """Seconds of an operation that ran (a `Ran`).

        A kernel of a kind that can be measured by itself takes as long as one of its size does alone. Of others the
        time is the roofline's: the longer of its arithmetic at the peak and its traffic at the bandwidth of where it
        stays, and a call's dispatch.

        Args:
            by_kernels: else the roofline's time is told of all, for which nothing has to be measured.
        """
        work = self.work(operation)
        if not work.bytes:
            return Cost(0.0, 0.0, 0.0, 0.0)
        compute = work.flops / self._peak(operation)
        kind = "weights" if is_product(operation) else "pointwise"
        traffic = work.bytes / self.ceilings.bandwidth(work.bytes, self.threads, kind)
        place = place_of(operation) if by_kernels else None
        if place is None:
            start = self.ceilings.call("graph op")
            return Cost(max(compute, traffic) + start, compute, traffic, start)
        seconds = self.rates.seconds(place)
        return Cost(seconds, compute, traffic, min(seconds, self.rates.start(place.kind)))

    def is_call(self, operation: Any) -> bool:
        """Whether an operation's time is that of others, which are in the trace themselves."""
        return operation.type in CALLS

    def work(self, operation: Any) -> Work:
        """What an operation that ran computes and moves; nothing, if it only hands on."""
        name = operation.name[-200:]
        if operation.type in FREE or self.is_call(operation):
            return Work(name=name, flops=0, products=0, read=0, written=0, operations=0)
        work = work_of(name, operation)
        beside = len(operation.fused) * work.written // 4 if operation.outputs else 0
        return work.model_copy(update={"flops": work.flops + beside})

    def _peak(self, operation: Any) -> float:
        """Of the operation's type, where products of it were measured."""
        dtype = operation.outputs[0].dtype.name if operation.outputs else "float32"
        measured = {one.dtype for one in self.ceilings.products if one.threads == self.threads}
        return self.ceilings.peak(dtype if dtype in measured else "float32", self.threads)
