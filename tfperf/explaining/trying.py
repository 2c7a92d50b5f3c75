"""The techniques that were suggested, measured side by side with what they are compared with."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfperf.errors import TfperfError
from tfperf.explaining.explanation import Explained, Technique
from tfperf.exports.servable import Servable
from tfperf.hardware.counting.tracing import forward_pass
from tfperf.measure import Comparison, Progress, Ratio, check_agreement, compare
from tfperf.measure.comparison import judge

__all__ = ["try_out"]

TOLERANCES = {"XLA": 1e-3, "bfloat16": 0.1}
"""Way -> largest relative error of an answer; one that errs by more is not timed."""

Call = Callable[[], Any]


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
    for way in wanted:
        if way.startswith("batch "):
            more = _tensors(servable, int(way.removeprefix("batch ")))
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
    if technique.way.startswith("batch "):  # the gain is told for each example
        ratio = _for_each(ratio, int(technique.way.removeprefix("batch ")) / batch, comparison.margin)
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
