"""Where the time of a function goes: its calls, its kernels, what each is bound by, and what XLA makes of them."""

import itertools
import math
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import tensorflow as tf
from numpy.typing import NDArray

from tfperf.errors import HardwareError
from tfperf.explaining.budget import Budget
from tfperf.explaining.explanation import CallTime, LayerTime, Xla
from tfperf.hardware.counting.hlo_work import hlo_work
from tfperf.hardware.counting.tracing import program_of
from tfperf.hardware.counting.work import OUTSIDE, Work, layer_of
from tfperf.hardware.kernels.kernel_run import KernelRun
from tfperf.hardware.kernels.prediction import KernelPredictor
from tfperf.hardware.kernels.roofline import Cost, Spent
from tfperf.hardware.kernels.traced import Traced
from tfperf.measure import Comparison, Measurement, Progress, compare, measure
from tfperf.measure.words import escape_unprintable

__all__ = [
    "LEAST_SECONDS",
    "Examined",
    "Kernel",
    "call_seconds",
    "examine",
    "kernel_seconds",
    "kernels_of",
    "layers_of",
    "not_asked",
    "xla_of",
]

EAGER_RUNS = 10
"""Traced runs of the operations as they are written: of these only the sum is told."""

FIRST_SHARE = 0.35
"""Share of the time after which no more kernels are measured for the net as it is."""

LEAST_SECONDS = 15.0
"""Seconds for measuring the largest kernels alone, however long the calls took."""


class Kernel(NamedTuple):
    """An operation that ran, what it computes and moves, and what it should take."""

    ran: KernelRun
    work: Work
    cost: Cost

    @property
    def seconds(self) -> float:
        """Measured, at best; 0 of what only hands on what it takes, whose time lies between the kernels."""
        return self.ran.seconds if self.work.operations else 0.0


class Examined(NamedTuple):
    """What was seen of a function."""

    calls: tuple[CallTime, ...]
    comparison: Comparison | None
    kernels: tuple[Kernel, ...]
    tracing_cost: float
    disturbance: float
    """How many times as long the kernels took in a usual run, just before and after the calls, as at best: what is
    predicted of a call is so much longer, as the median of the calls is."""

    def predicted(self, seconds: float) -> float:
        """What takes so many seconds on an undisturbed machine, beside the calls that were measured."""
        return seconds * self.disturbance


def examine(
    graph: Any,
    arrays: Sequence[NDArray[Any]],
    prediction: KernelPredictor,
    *,
    eager: Callable[..., Any] | None,
    budget: Budget | None = None,
    time_limit: float = 10.0,
    on_progress: Callable[[Progress], None] | None = None,
    on_first: Callable[[Examined], None] | None = None,
) -> Examined:
    """Call a function eagerly and as a graph, and look into the graph.

    Args:
        graph: a `tf.function` of tensors by position.
        arrays: its inputs.
        prediction: what this machine gives.
        eager: what is called eagerly; None: it cannot be.
        budget: of the time for kernels alone; None: there is no limit.
        time_limit: seconds for the calls, side by side.
        on_progress: is told how far the calls are.
        on_first: is given what is known before the kernels are measured alone; their costs are the roofline's.

    Raises:
        HardwareError: it uses something other than variables, as a lookup table.
    """
    tensors = [tf.constant(array) for array in arrays]
    concrete = graph.get_concrete_function(*tensors)
    budget = budget or Budget()
    with Traced(concrete, arrays) as traced:
        traces = [traced.operations()]
        comparison, measured = _measured_calls(graph, eager, tensors, time_limit, on_progress)
        traces.append(traced.operations())
        beside_calls, tracing_cost = traces[-2:], traced.tracing_cost()
        written: tuple[Kernel, ...] = ()
        if eager is not None:
            with Traced(concrete, arrays, rewritten=False) as as_written:
                written = kernels_of(as_written.operations(EAGER_RUNS), prediction, by_kernels=False)

        def examined(by_kernels: bool) -> Examined:
            kernels = kernels_of(_undisturbed(traces, beside_calls), prediction, by_kernels)
            disturbance = _disturbance(kernels)
            predicted = call_seconds(kernels, prediction) * disturbance
            calls = [_call_time("eager", measured["eager"], written, None)] if eager is not None else []
            calls.append(_call_time("graph", measured["graph"], kernels, predicted))
            return Examined(tuple(calls), comparison, kernels, tracing_cost, disturbance)

        if on_first is not None:
            on_first(examined(by_kernels=False))
        prediction.times.until = budget.until(FIRST_SHARE, LEAST_SECONDS)
        # In turns with the kernels alone: a machine that is slower for some seconds is so for both
        with budget.until_interrupted():
            prediction.learn(traces[0], meanwhile=lambda: traces.append(traced.operations()))
        if budget.interrupted:
            prediction.times.until = -math.inf
        return examined(by_kernels=True)


def _measured_calls(
    graph: Any,
    eager: Callable[..., Any] | None,
    tensors: Sequence[Any],
    time_limit: float,
    on_progress: Callable[[Progress], None] | None,
) -> tuple[Comparison | None, dict[str, Measurement]]:
    """The calls by way, side by side where there are two."""
    if eager is None:
        alone = measure(graph, tensors, name="graph", time_limit=time_limit, on_progress=on_progress)
        return None, {"graph": alone}
    both = {"eager": eager, "graph": graph}
    comparison = compare(both, tensors, time_limit=time_limit, on_progress=on_progress)
    return comparison, {way: comparison[way] for way in both}


def _undisturbed(seen: Sequence[Sequence[KernelRun]], beside_calls: Sequence[Sequence[KernelRun]]) -> list[KernelRun]:
    """The best of several measurements of each operation, with what it usually took beside the calls."""
    shortest: dict[str, float] = {}
    usual: dict[str, list[float]] = {}
    for one in itertools.chain(*seen):
        shortest[one.name] = min(one.seconds, shortest.get(one.name, one.seconds))
    for one in itertools.chain(*beside_calls):
        usual.setdefault(one.name, []).append(one.usual)
    return [one._replace(seconds=shortest[one.name], usual=fmean(usual[one.name])) for one in beside_calls[0]]


def _disturbance(kernels: Sequence[Kernel]) -> float:
    best, usual = (sum(times) for times in ((one.seconds for one in kernels), map(_usual, kernels)))
    return max(1.0, usual / best) if best else 1.0


def _usual(kernel: Kernel) -> float:
    """Seconds in a usual run, as `Kernel.seconds` at best."""
    return kernel.ran.usual if kernel.work.operations else 0.0


def kernels_of(
    operations: Sequence[KernelRun], prediction: KernelPredictor, by_kernels: bool = True
) -> tuple[Kernel, ...]:
    """The operations with their work and costs; those left out whose time is that of others in the list."""
    listed = [one for one in operations if not prediction.is_call(one)]
    costs = prediction.costs(listed) if by_kernels else [prediction.roofline(one) for one in listed]
    return tuple(
        Kernel(one, prediction.work(one).times(one.turns), cost) for one, cost in zip(listed, costs, strict=True)
    )


def call_seconds(kernels: Sequence[Kernel], prediction: KernelPredictor) -> float:
    """What a call of a graph with these kernels should take: its own cost, each kernel's time, and its dispatch."""
    ceilings = prediction.ceilings
    dispatched = sum(kernel.work.operations for kernel in kernels)
    return ceilings.call("tf.function call") + kernel_seconds(kernels) + dispatched * ceilings.call("graph op")


def kernel_seconds(kernels: Sequence[Kernel]) -> float:
    """What the kernels should take, all together, without their dispatch."""
    return sum(kernel.cost.seconds for kernel in kernels)


def layers_of(kernels: Sequence[Kernel], names: Sequence[str]) -> tuple[LayerTime, ...]:
    """The kernels by layer, in the order of the layers; what is outside comes last.

    Args:
        names: of the layers; none: of a graph without any, whose scopes stand for them.
    """
    parts: dict[str, list[Kernel]] = {name: [] for name in names}
    outside: list[Kernel] = []
    for kernel in kernels:
        layer = layer_of(kernel.ran.name, names) if names else kernel.ran.name.rpartition("/")[0]
        (parts.setdefault(layer, []) if layer else outside).append(kernel)
    shown = {**parts, OUTSIDE: outside}
    return tuple(_layer(name, inside) for name, inside in shown.items() if any(one.work.operations for one in inside))


def _layer(name: str, kernels: Sequence[Kernel]) -> LayerTime:
    spent = Spent.of((kernel.cost, kernel.seconds) for kernel in kernels)
    work = Work.sum(name[-200:], [kernel.work for kernel in kernels])
    return LayerTime(
        name=work.name,
        flops=work.flops,
        bytes=work.bytes,
        kernels=work.operations,
        seconds=sum(kernel.seconds for kernel in kernels),
        predicted=sum(kernel.cost.seconds for kernel in kernels),
        at_best=sum(max(kernel.cost.compute, kernel.cost.traffic) for kernel in kernels),
        compute=spent.compute,
        bandwidth=spent.bandwidth,
        overhead=spent.overhead,
    )


def _call_time(way: str, measured: Measurement, kernels: Sequence[Kernel], predicted: float | None) -> CallTime:
    """Where the time of a call goes: the median of the calls, beside the median of the runs of its kernels."""
    seconds = measured.median
    times = [_usual(kernel) for kernel in kernels]
    between = max(0.0, seconds - sum(times))
    spent = Spent.of(zip((kernel.cost for kernel in kernels), times, strict=True), between)
    return CallTime(
        way=way,
        seconds=seconds,
        predicted=predicted,
        kernels=sum(kernel.work.operations for kernel in kernels),
        compute=spent.compute,
        bandwidth=spent.bandwidth,
        overhead=spent.overhead,
        between=between,
    )


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
