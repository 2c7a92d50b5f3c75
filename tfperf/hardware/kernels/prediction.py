"""How long the kernels of a net should take on this machine, told without running the net."""

import math
from collections.abc import Callable, Sequence

import tensorflow as tf

from tfperf.hardware.ceilings import Ceilings
from tfperf.hardware.counting.graph_work import VIEWS, work_of
from tfperf.hardware.counting.work import Work
from tfperf.hardware.kernels.alone import Among
from tfperf.hardware.kernels.kernel_run import KernelRun, TensorOrigin
from tfperf.hardware.kernels.roofline import Cost
from tfperf.hardware.kernels.times import KernelTimes

__all__ = ["KernelPredictor", "bytes_of_a_run"]

FREE = VIEWS | {"_Arg", "_Retval", "LoopCond", "Enter", "Exit", "Merge", "Switch", "NextIteration", "AssignVariableOp"}
"""Operations that only hand on what they take."""

CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall", "While", "StatelessWhile", "If", "StatelessIf"})
"""Operations that call functions."""

KEPT = (TensorOrigin.WEIGHT, TensorOrigin.CONSTANT)

SMALL = 0.01
"""Kernels that take less than this share of a run are not measured alone: the roofline is exact enough for them."""

LEAST, MOST = 2**16, 2**26
"""Bytes: less stays in the nearest caches, more than that in none."""


class KernelPredictor:
    """What this machine gives: ceilings for the roofline, kernels by themselves for the times."""

    def __init__(self, ceilings: Ceilings, times: KernelTimes) -> None:
        """Predict for the threads of the kernels.

        Raises:
            HardwareError: the ceilings were not measured with so many threads.
        """
        self.ceilings, self.times = ceilings, times
        self.threads = times.threads
        ceilings.peak("float32", self.threads)

    def learn(self, operations: Sequence[KernelRun], meanwhile: Callable[[], object] = lambda: None) -> None:
        """Measure the kernels of operations that run one after the other, those that are not known.

        Args:
            meanwhile: is called after each pass over them, and once in any case.
        """
        self.times.learn(self._working(operations), meanwhile)

    def costs(self, operations: Sequence[KernelRun]) -> list[Cost]:
        """Seconds of operations that run one after the other, as they have run before.

        Each takes as long as by itself, its weights as far away as the others send them, the first with what waking
        TensorFlow's threads costs; one that cannot be run by itself takes what the roofline says.
        """
        self.learn(operations)  # all in turns, before each is asked for by itself
        places = {operation.name: among for operation, among in self._working(operations)}
        found = []
        for operation in operations:
            cost = self.roofline(operation)
            among = places.get(operation.name)
            known = self.times.alone(operation, among) if among is not None else None
            if known is not None:
                seconds = known * operation.turns
                cost = cost._replace(seconds=seconds, start=min(seconds, cost.start))
            found.append(cost)
        return found

    def _working(self, operations: Sequence[KernelRun]) -> list[tuple[KernelRun, Among]]:
        """Find the kernels that take a share of the time worth measuring, each with its place in the run."""
        whole, least = bytes_of_a_run(operations), SMALL * sum(one.seconds for one in operations)
        working = [one for one in operations if self.roofline(one).seconds]
        placed = [(one, Among(_beside(one, whole), first=one is working[0])) for one in working]
        return sorted((one for one in placed if one[0].seconds >= least), key=lambda one: -one[0].seconds)

    def roofline(self, operation: KernelRun) -> Cost:
        """The longer of an operation's arithmetic at the peak and its traffic at its bandwidth, and a dispatch."""
        work = self.work(operation)
        if not work.bytes:
            return Cost(0.0, 0.0, 0.0, 0.0)
        compute = work.flops / self._peak(operation)
        kind = "weights" if work.products else "pointwise"
        traffic = work.bytes / self.ceilings.bandwidth(work.bytes, self.threads, kind)
        start = self.ceilings.call("graph op")
        return Cost(*(operation.turns * part for part in (max(compute, traffic) + start, compute, traffic, start)))

    def is_call(self, operation: KernelRun) -> bool:
        """Whether an operation's time is that of others, which are in the trace themselves."""
        return operation.type in CALLS and operation.compiled is None

    def work(self, operation: KernelRun) -> Work:
        """What an operation that ran computes and moves, in one turn; nothing, if it only hands on."""
        name = operation.name[-200:]
        if operation.compiled is not None:
            return operation.compiled.work
        if operation.type in FREE or self.is_call(operation):
            return Work(name=name, flops=0, products=0, read=0, written=0, operations=0)
        work = work_of(name, operation)
        beside = len(operation.fused) * work.written // 4 if operation.outputs else 0
        return work.model_copy(update={"flops": work.flops + beside})

    def _peak(self, operation: KernelRun) -> float:
        """The peak in FLOP/s of the operation's type, where products of it were measured, else float32's."""
        dtype = operation.outputs[0].dtype.name if operation.outputs else "float32"
        measured = {one.dtype for one in self.ceilings.products if one.threads == self.threads}
        return self.ceilings.peak(dtype if dtype in measured else "float32", self.threads)


def bytes_of_a_run(operations: Sequence[KernelRun]) -> int:
    """About how many bytes a run touches: what is taken of variables and constants, and what else one operation does.

    What operations give one another is in the same memory again and again.
    """
    kept: dict[str, int] = {}
    largest = 0
    for operation in (one for one in operations if one.compiled or one.type not in FREE | CALLS):
        given = 0
        for one in operation.taken:
            if one.origin in KEPT:
                kept[one.source.name] = one.bytes
            else:
                given += one.bytes
        largest = max(largest, given + sum(map(_bytes, operation.outputs)))
    return sum(kept.values()) + largest


def _beside(operation: KernelRun, whole: int) -> int:
    """Bytes that a run touches beside those of one operation; the nearest power of 2, which other nets have, too."""
    own = sum(one.bytes for one in operation.taken) + sum(map(_bytes, operation.outputs))
    return int(min(MOST, max(LEAST, 2 ** round(math.log2(max(1, whole - own))))))


def _bytes(spec: tf.TensorSpec) -> int:
    return 0 if spec.dtype == tf.resource else int(spec.shape.num_elements() * spec.dtype.size)
