"""From a model to what it waits for: `tfperf.explain`."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import tensorflow as tf

from tfperf.errors import HardwareError
from tfperf.explaining.budget import Budget
from tfperf.explaining.compiled import not_asked, xla_of
from tfperf.explaining.examining import LEAST_SECONDS, Examined, Kernel, examine, kernel_seconds, kernels_of, layers_of
from tfperf.explaining.explanation import Explained, Explanation, Intervention, Xla
from tfperf.explaining.intervening import intervene, judged
from tfperf.explaining.machine import ceilings_for, doubts_about, roofs_of, use_threads
from tfperf.explaining.subject import Subject, read_subject
from tfperf.explaining.suggesting import Elsewhere, suggestions
from tfperf.explaining.trying import try_out
from tfperf.explaining.words import call_words, verdicts
from tfperf.hardware.ceilings import Ceilings
from tfperf.hardware.counting.graph_work import graph_work
from tfperf.hardware.counting.tracing import forward_pass
from tfperf.hardware.counting.work import Work
from tfperf.hardware.kernels.prediction import Prediction
from tfperf.hardware.kernels.times import KernelTimes
from tfperf.hardware.kernels.traced import Traced
from tfperf.measure import Environment, Progress

__all__ = ["explain"]

LARGER = 64
"""Examples that smaller batches are compared with."""

TIME_LIMIT = 5.0
"""Seconds for each comparison of a few ways."""

RUNS_ELSEWHERE = 8
"""Runs of a net at another batch size or precision: traced, and its large kernels alone."""

SECONDS_TO_COMPILE = 0.02
"""What XLA may take for each operation of a net: twice what EfficientNetB0 took on 2 busy cores."""

NOT_ASKED = "it was not asked, for lack of time"


class Watcher(Protocol):
    """Is told how far it is."""

    def begin(self, step: str) -> None:
        """A step begins."""

    def show(self, progress: Progress) -> None:
        """A measurement goes on."""

    def know(self, sentence: str) -> None:
        """Something is known already that later stages only refine."""


class _Nobody:
    """Is told, and does nothing."""

    def begin(self, step: str) -> None:
        """A step begins."""

    def show(self, progress: Progress) -> None:
        """A measurement goes on."""

    def know(self, sentence: str) -> None:
        """Something is known already that later stages only refine."""


def explain(
    model: Any,
    batch: int | Sequence[int] = 1,
    *,
    training: bool = False,
    try_techniques: bool = False,
    threads: int | None = None,
    signature: str | None = None,
    seed: int = 0,
    quick: bool = False,
    fresh: bool = False,
    ceilings: Ceilings | None = None,
    cache: Path | None = None,
    time_limit: float = TIME_LIMIT,
    limit: float = math.inf,
    watcher: Watcher | None = None,
) -> Explanation:
    """What a model waits for on this machine's CPU: arithmetic, bandwidth, or overhead; and what would help.

    Args:
        model: a `keras.Model`, or what the command line takes.
        batch: sizes, each looked at by itself.
        training: look at forward and backward, in place of forward alone.
        try_techniques: measure the techniques that it suggests, too.
        threads: of TensorFlow; None: all cores. A process chooses them once, before TensorFlow runs anything.
        signature, seed: as `open_model` takes them.
        quick: ceilings that were measured in less time will do.
        fresh: measure the machine again, whatever is kept of it.
        ceilings: of this machine; None: those that are kept, or else measured now, which takes a minute.
        cache: folder of what is kept of this machine; None: tfperf's own.
        time_limit: seconds for each comparison.
        limit: seconds for all of it once the machine is known; what does not fit is left out, and a doubt says so.
        watcher: is told how far it is, and what is known before the end.

    Ctrl-C ends the measuring and gives what is known so far; before the first calls are measured it ends everything.

    Raises:
        ExportError: there is no such model, or it cannot be traced.
        HardwareError: it cannot be looked into, or TensorFlow has started with other threads.
        TypeError: neither a string nor a Keras model.
        ValueError: a number is under 1.
    """
    batches = sorted({batch} if isinstance(batch, int) else set(batch))
    if not batches or min(batches) < 1 or (threads is not None and threads < 1):
        raise ValueError(f"expected batch sizes and threads of 1 or more. Received: {batch=}, {threads=}")
    tell = watcher or _Nobody()
    used = use_threads(threads)
    subject = read_subject(model, training, signature, seed)
    tell.begin("ceilings of this machine")
    known = ceilings or ceilings_for(used, quick, fresh, cache, tell.begin)
    times = KernelTimes(used, cache, tell=tell.begin, fresh=fresh)
    prediction = Prediction(known, times)
    graph = tf.function(subject.function)
    results: list[Explained] = []
    budgets: list[Budget] = []
    try:
        for size in batches:
            budgets.append(Budget(limit / len(batches)))
            results.append(_explained(subject, graph, size, prediction, try_techniques, time_limit, tell, budgets[-1]))
            if budgets[-1].interrupted:
                break
    except KeyboardInterrupt:
        if not results:  # nothing is known yet
            raise
        budgets[-1].interrupted = True
    finally:
        times.keep()
    for size in batches[len(results) :]:
        budgets[-1].leave_out(f"all of batch {size}")
    doubts = [doubt for budget in budgets for doubt in budget.doubts]
    return Explanation(
        model=subject.servable.name,
        opened_as=model if isinstance(model, str) else f"keras.Model {subject.servable.name}",
        training=training,
        threads=used,
        environment=Environment.here(),
        roofs=roofs_of(known, used),
        batches=tuple(results),
        traces=graph.experimental_get_tracing_count(),
        doubts=(*doubts, *doubts_about(known, times, results)),
    )


def _explained(
    subject: Subject,
    graph: Any,
    batch: int,
    prediction: Prediction,
    try_techniques: bool,
    time_limit: float,
    tell: Watcher,
    budget: Budget,
) -> Explained:
    """Explain the model at a batch size: its calls and kernels first, then what there is time for."""

    def know(first: Examined) -> None:
        for call in first.calls:
            tell.know(call_words(call))
        tell.begin(f"batch {batch}: the kernels alone")

    tell.begin(f"batch {batch}: eager and graph")
    arrays = subject.servable.signature.random_inputs(batch)
    examined = examine(
        graph, arrays, prediction, eager=subject.eager, budget=budget, time_limit=time_limit,
        on_progress=tell.show, on_first=know,
    )  # fmt: skip
    works = _works(graph, arrays, examined.kernels)
    call = next(one.seconds for one in examined.calls if one.way == "graph")

    prediction.times.until = budget.until(0.5, LEAST_SECONDS)
    tell.begin(f"batch {batch}: what would help")
    larger, half = None, None
    if batch < LARGER:
        runs = RUNS_ELSEWHERE * call * LARGER / batch
        larger = budget.run(f"batch {LARGER}", runs, lambda: _at_batch(subject, LARGER, prediction), None)
    if _computes_in_half(subject, prediction):
        half = budget.run("bfloat16", RUNS_ELSEWHERE * call, lambda: _in_half(subject, batch, prediction), None)
    tell.begin(f"batch {batch}: what XLA makes of it")
    compiling = SECONDS_TO_COMPILE * len(works)  # XLA cannot be stopped while it compiles
    without: tuple[Xla, tuple[Work, ...]] = (not_asked(works, NOT_ASKED), ())
    xla, xla_kernels = budget.run("XLA", compiling, lambda: xla_of(subject.function, arrays, works), without)
    tell.begin(f"batch {batch}: does the time move as it should?")
    prediction.times.until = budget.until(0.8)
    interventions: list[Intervention] = budget.run(
        "the test of what they wait for", 2 * time_limit,
        lambda: _interventions(subject, graph, examined, batch, prediction, time_limit, tell), [],
    )  # fmt: skip
    whole = Work.sum("net", works)
    explained = Explained(
        batch=batch,
        flops=whole.flops,
        bytes=whole.bytes,
        calls=examined.calls,
        comparison=examined.comparison,
        layers=layers_of(examined.kernels, subject.layers),
        tracing_cost=examined.tracing_cost,
        disturbance=examined.disturbance,
        xla=xla,
        techniques=suggestions(
            examined, batch, prediction, xla, xla_kernels, larger, half, deployable=not subject.training
        ),
        interventions=tuple(interventions),
    )
    if try_techniques:
        tell.begin(f"batch {batch}: trying what would help")
        plain = explained
        explained = budget.run(
            "the trial of what would help", time_limit,
            lambda: try_out(
                plain, subject.servable, subject.function, subject.eager, time_limit, on_progress=tell.show
            ),
            explained,
        )  # fmt: skip
    return explained.model_copy(
        update={"verdicts": tuple(verdicts(explained, roofs_of(prediction.ceilings, prediction.threads)))}
    )


def _works(graph: Any, arrays: Sequence[Any], kernels: Sequence[Kernel]) -> list[Work]:
    """Count the graph as it is written; where its loops cannot be counted, count what ran."""
    try:
        return graph_work(graph.get_concrete_function(*[tf.constant(array) for array in arrays]))
    except HardwareError:
        return [kernel.work for kernel in kernels]


def _elsewhere(
    function: Callable[..., Any], subject: Subject, batch: int, prediction: Prediction, way: str
) -> Elsewhere:
    """The kernels of a function at a batch size, run once."""
    arrays = subject.servable.signature.random_inputs(batch)
    concrete = tf.function(function).get_concrete_function(*[tf.constant(array) for array in arrays])
    with Traced(concrete, arrays) as traced:
        return Elsewhere(way, kernels_of(traced.operations(runs=1), prediction), batch)


def _at_batch(subject: Subject, batch: int, prediction: Prediction) -> Elsewhere | None:
    """The kernels at another batch size."""
    return _elsewhere(subject.function, subject, batch, prediction, f"batch {batch}")


def _computes_in_half(subject: Subject, prediction: Prediction) -> bool:
    """Whether it is the forward pass of a Keras net, on a machine whose products in bfloat16 were measured."""
    measured = {one.dtype for one in prediction.ceilings.products if one.threads == prediction.threads}
    return subject.servable.net is not None and not subject.training and "bfloat16" in measured


def _in_half(subject: Subject, batch: int, prediction: Prediction) -> Elsewhere | None:
    """The kernels in bfloat16."""
    half = forward_pass(subject.servable.variant("bfloat16"))
    return _elsewhere(half, subject, batch, prediction, "bfloat16")


def _interventions(
    subject: Subject,
    graph: Any,
    examined: Examined,
    batch: int,
    prediction: Prediction,
    time_limit: float,
    tell: Watcher,
) -> list[Intervention]:
    """What can be changed of any model: its calls, by a graph; its work, by the batch.

    By another batch only what is inside of the kernels moves; what was seen between them stays.
    """
    calls = {call.way: call for call in examined.calls}
    found = []
    if examined.comparison is not None and calls["graph"].predicted is not None:
        ratio = examined.comparison.ratio("eager", "graph")
        expected = calls["graph"].predicted / calls["eager"].seconds
        found.append(judged("a graph in place of eager calls", calls["eager"].bound, ratio, expected))
    other = batch // 2 if batch > 1 else 2
    changed = _elsewhere(subject.function, subject, other, prediction, f"batch {other}")
    stays = calls["graph"].between
    before, after = (examined.predicted(kernel_seconds(one.kernels)) for one in (examined, changed))
    expected = (stays + after) / (stays + before)
    ours, others = (
        [tf.constant(array) for array in subject.servable.signature.random_inputs(size)] for size in (batch, other)
    )
    again = tf.function(subject.function)  # so that the traces of the batches asked for can be counted
    found.append(
        intervene(
            f"batch {other} in place of {batch}, as a graph", calls["graph"].bound,
            lambda: graph(*ours), lambda: again(*others), expected, time_limit=time_limit, on_progress=tell.show,
        )
    )  # fmt: skip
    return found
