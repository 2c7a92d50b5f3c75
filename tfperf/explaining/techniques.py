"""Which techniques of the cookbook should help, and how much: predicted, and measured where that is asked for.

Predicted by the same model of the machine as the layers' times.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfperf.engines import checking
from tfperf.errors import TfperfError
from tfperf.explaining.examining import Examined, Kernel, call_seconds
from tfperf.explaining.explanation import Explained, Technique, Xla
from tfperf.exports.servable import Servable
from tfperf.hardware.counting.tracing import forward_pass
from tfperf.hardware.counting.work import Work
from tfperf.hardware.kernels.prediction import KernelPredictor
from tfperf.hardware.kernels.roofline import Bound
from tfperf.measure import Comparison, Progress, Ratio, check_agreement, compare
from tfperf.measure.comparison import judge
from tfperf.measure.words import format_bytes, format_seconds

__all__ = ["Elsewhere", "suggestions", "try_out"]

MOST = 3
"""Techniques that are named: the largest gains."""

FEWEST = 1.1
"""A gain that is worth naming, times as fast."""

INT8_SHARE = 1 / 4
"""Bytes of a weight in int8, beside float32."""

TOLERANCES = {"XLA": 1e-3, "bfloat16": checking.TOLERANCES["bfloat16"]}
"""Way -> largest relative error of an answer; one that errs by more is not timed."""

Call = Callable[[], Any]


class Elsewhere(NamedTuple):
    """The kernels of the same net, called otherwise."""

    way: str
    kernels: Sequence[Kernel]
    batch: int


def suggestions(
    examined: Examined,
    batch: int,
    prediction: KernelPredictor,
    xla: Xla,
    xla_kernels: Sequence[Work],
    larger: Elsewhere | None,
    half: Elsewhere | None,
    deployable: bool = True,
) -> tuple[Technique, ...]:
    """Those with the largest predicted gains, what leaves Python first.

    Args:
        xla_kernels: what each kernel moves that XLA makes; none: it compiles nothing.
        larger: at a larger batch size.
        half: in bfloat16.
        deployable: whether other engines can run it, as they can no training.
    """
    calls = {call.way: call for call in examined.calls}
    graph = calls["graph"]
    found: list[Technique] = []
    if "eager" in calls and graph.predicted is not None:
        eager = calls["eager"]
        found.append(
            Technique(
                recipe="hybridize", way="graph", against="eager", before=eager.seconds, predicted=graph.predicted,
                words=f"Outside its kernels, in Python and in TensorFlow's dispatch, an eager call spends "
                f"{eager.overhead_share:.0%} of its time. A graph is one call.",
            )
        )  # fmt: skip
    found += _of_xla(graph.seconds, examined, prediction, xla, xla_kernels)
    if half is not None:
        found.append(
            Technique(
                recipe="mixed_precision", way=half.way, against="graph", before=graph.seconds,
                predicted=examined.predicted(call_seconds(half.kernels, prediction)),
                words="Numbers have half the bytes, and products the rate of this type; casts cost something, too.",
            )
        )  # fmt: skip
    if larger is not None:
        weights = sum(_weight_bytes(kernel) for kernel in examined.kernels)
        found.append(
            Technique(
                recipe="batch_size_intensity", way=larger.way, against="graph", batch=larger.batch,
                before=graph.seconds / batch,
                predicted=examined.predicted(call_seconds(larger.kernels, prediction)) / larger.batch,
                words=f"{format_bytes(weights)} of weights are read, and a call is paid for, once for {larger.batch} "
                f"examples instead of {batch}.",
            )
        )  # fmt: skip
    if deployable:
        found += _of_engines(graph.seconds, examined, prediction)
    worth = sorted((one for one in found if one.gain >= FEWEST), key=lambda one: (one.recipe != "hybridize", -one.gain))
    return tuple(worth[:MOST])


def _of_xla(
    seconds: float, examined: Examined, prediction: KernelPredictor, xla: Xla, after: Sequence[Work]
) -> Iterator[Technique]:
    """Products take what they take; of the other kernels, what they move."""
    if not xla.compiled:
        return
    products = sum(kernel.cost.seconds for kernel in examined.kernels if kernel.work.products)
    moved = sum(
        one.bytes / prediction.ceilings.bandwidth(one.bytes, prediction.threads)
        for one in after
        if not one.products and one.bytes
    )
    yield Technique(
        recipe="operator_fusion", way="XLA", against="graph", before=seconds,
        predicted=examined.predicted(prediction.ceilings.call("tf.function call") + products + moved),
        words=f"XLA makes {xla.kernels} kernels of {xla.operations} operations. They move "
        f"{format_bytes(xla.bytes_after)} instead of {format_bytes(xla.bytes_before)}.",
    )  # fmt: skip


def _of_engines(seconds: float, examined: Examined, prediction: KernelPredictor) -> Iterator[Technique]:
    inside = examined.predicted(sum(kernel.seconds for kernel in examined.kernels))
    saved = examined.predicted(
        sum(
            (1 - INT8_SHARE) * (kernel.seconds - min(kernel.cost.start, kernel.seconds))
            for kernel in examined.kernels
            if kernel.work.products and kernel.cost.bound is Bound.BANDWIDTH
        )
    )
    yield Technique(
        recipe="quantize_int8", way="int8", against="graph", before=seconds, predicted=max(seconds - saved, 1e-9),
        words="Products that wait for their weights read a quarter of the bytes.",
    )  # fmt: skip
    left = inside + examined.predicted(prediction.ceilings.call("python call"))
    yield Technique(
        recipe="deploy_engines", way="another engine", against="graph", before=seconds, predicted=left,
        words=f"That is the most: a call spends {format_seconds(max(0.0, seconds - inside))} outside TensorFlow's "
        "kernels, and other engines less. `tfperf tune` finds the fastest.",
    )  # fmt: skip


def _weight_bytes(kernel: Kernel) -> int:
    """The bytes that a product reads as its second matrix; 0 for another kernel."""
    if not kernel.work.products or len(kernel.ran.inputs) < 2:
        return 0
    weights = kernel.ran.inputs[1]
    return int(weights.shape.num_elements() * weights.dtype.size)


def try_out(
    explained: Explained,
    servable: Servable,
    function: Callable[..., Any],
    eager: Callable[..., Any] | None,
    time_limit: float,
    on_progress: Callable[[Progress], None] | None = None,
) -> Explained:
    """The same with what was measured beside what is predicted, for what TensorFlow itself can do.

    Other engines and int8 are left to `tfperf tune`, which runs them.

    Args:
        function: takes tensors by position.
        eager: None: it cannot be called eagerly.
        time_limit: seconds for all ways together.
    """
    wanted = {way for one in explained.techniques for way in (one.way, one.against)}
    calls = _calls(wanted, servable, function, eager, explained)
    if len(calls) < 2:
        return explained
    comparison = compare(calls, time_limit=time_limit, on_progress=on_progress)
    tried = [_tried(one, comparison, calls, explained.batch) for one in explained.techniques]
    return explained.model_copy(update={"techniques": tuple(tried)})


def _calls(
    wanted: set[str],
    servable: Servable,
    function: Callable[..., Any],
    eager: Callable[..., Any] | None,
    explained: Explained,
) -> dict[str, Call]:
    tensors = _tensors(servable, explained.batch)
    graph = tf.function(function)
    sizes = {one.way: one.batch for one in explained.techniques if one.batch}
    calls: dict[str, Call] = {}
    if "eager" in wanted and eager is not None:
        calls["eager"] = lambda: eager(*tensors)
    if "graph" in wanted:
        calls["graph"] = lambda: graph(*tensors)
    if "XLA" in wanted:
        compiled = tf.function(function, jit_compile=True)
        calls["XLA"] = lambda: compiled(*tensors)
    if "bfloat16" in wanted:
        half = tf.function(forward_pass(servable.variant("bfloat16")))
        calls["bfloat16"] = lambda: half(*tensors)
    for way, batch in sizes.items():
        more = _tensors(servable, batch)
        calls[way] = lambda more=more: graph(*more)  # type: ignore[misc]
    return {way: call for way, call in calls.items() if way not in TOLERANCES or _agrees(way, call, graph, tensors)}


def _agrees(way: str, call: Call, graph: Any, tensors: Sequence[Any]) -> bool:
    """Whether it can be done, with the same answers."""
    reference = [one.numpy() for one in graph(*tensors)]
    try:
        answers = [one.numpy() for one in call()]
        return check_agreement(way, answers, reference, TOLERANCES[way]).passed
    except (tf.errors.OpError, TfperfError, ValueError):
        return False


def _tensors(servable: Servable, batch: int) -> list[Any]:
    return [tf.constant(array) for array in servable.signature.random_inputs(batch)]


def _tried(technique: Technique, comparison: Comparison, calls: dict[str, Call], batch: int) -> Technique:
    if technique.way not in calls or technique.against not in calls:
        return technique
    ratio = comparison.ratio(technique.against, technique.way)
    if technique.batch is not None:  # the gain is told for each example
        ratio = _for_each(ratio, technique.batch / batch, comparison.margin)
    return technique.model_copy(update={"measured": ratio})


def _for_each(ratio: Ratio, more: float, margin: float) -> Ratio:
    """The same, of one example, where a call has so many times as many."""
    interval = ratio.interval._replace(estimate=ratio.estimate * more, low=ratio.low * more, high=ratio.high * more)
    return Ratio(
        baseline=ratio.baseline,
        candidate=ratio.candidate,
        estimate=interval.estimate,
        low=interval.low,
        high=interval.high,
        verdict=judge(interval, margin),
    )
