"""From a model to what it waits for: `tfperf.explain`."""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import keras
import tensorflow as tf

from tfperf.errors import HardwareError
from tfperf.explaining.budget import Budget
from tfperf.explaining.examining import (
    LEAST_SECONDS,
    Examined,
    Kernel,
    examine,
    kernel_seconds,
    kernels_of,
    layers_of,
    not_asked,
    xla_of,
)
from tfperf.explaining.explanation import Explained, Explanation, Intervention, Xla
from tfperf.explaining.machine import ceilings_for, doubts_about, roofs_of, use_threads
from tfperf.explaining.techniques import Elsewhere, suggestions, try_out
from tfperf.explaining.training_step import explain_step
from tfperf.explaining.verdicts import call_words, intervene, judged, verdicts
from tfperf.exports.keras_nets import computing_in, faster_layers, in_keras_form, layers_to_switch, restoring
from tfperf.exports.opening import open_model
from tfperf.exports.servable import Servable
from tfperf.hardware.ceilings import Ceilings
from tfperf.hardware.counting.graph_work import graph_work
from tfperf.hardware.counting.tracing import forward_pass, training_pass
from tfperf.hardware.counting.work import Work
from tfperf.hardware.kernels.prediction import KernelPredictor
from tfperf.hardware.kernels.times import KernelTimes
from tfperf.hardware.kernels.traced import Traced
from tfperf.measure import Doubt, Environment, Progress
from tfperf.training.examples import load_examples

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


class StepListener(Protocol):
    """Is told how far an explanation is."""

    def begin(self, step: str) -> None:
        """A step begins."""

    def show(self, progress: Progress) -> None:
        """A measurement goes on."""

    def know(self, sentence: str) -> None:
        """Something is known already that later stages only refine."""


class _Silent:
    """A listener that says nothing."""

    def begin(self, step: str) -> None:
        pass

    def show(self, progress: Progress) -> None:
        pass

    def know(self, sentence: str) -> None:
        pass


class ModelFunctions(NamedTuple):
    """A model as functions of tensors by position.

    Attributes:
        function: what is explained: the forward pass, or forward and backward.
        eager: the same, called eagerly while the net is held; None: it cannot be.
        layers: their names; of nets within the net, theirs.
    """

    servable: Servable
    function: Callable[..., Any]
    eager: Callable[..., Any] | None
    training: bool
    layers: tuple[str, ...]


def explain(
    model: Any,
    batch: int | Sequence[int] = 1,
    *,
    training: bool = False,
    data: str | None = None,
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
    watcher: StepListener | None = None,
) -> Explanation:
    """What a model waits for on this machine's CPU: arithmetic, bandwidth, or overhead; and what would help.

    Args:
        model: a `keras.Model`, or what the command line takes.
        batch: sizes, each looked at by itself.
        training: look at forward and backward, in place of forward alone, and take a step of `fit` apart. This is in
            the types of the net; forward alone is in float32, as exports compute. The net stays as it is.
        data: what is trained on, one of `tfperf.training.examples.DATA_FORMS`; None: random inputs in memory.
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
        HardwareError: it cannot be looked into.
        ThreadsError: TensorFlow has started with other threads.
        TypeError: neither a string nor a Keras model.
        ValueError: a number is under 1.
    """
    batches = sorted({batch} if isinstance(batch, int) else set(batch))
    if not batches or min(batches) < 1 or (threads is not None and threads < 1):
        raise ValueError(f"expected batch sizes and threads of 1 or more. Received: {batch=}, {threads=}")
    tell = watcher or _Silent()
    used = use_threads(threads)
    functions = _functions_of(open_model(model, signature=signature, seed=seed), training)
    examples = load_examples(data) if data is not None else None
    tell.begin("ceilings of this machine")
    known = ceilings or ceilings_for(used, quick, fresh, cache, tell.begin)
    times = KernelTimes(used, cache, tell=tell.begin, fresh=fresh)
    prediction = KernelPredictor(known, times)
    graph = tf.function(functions.function)
    results: list[Explained] = []
    budgets: list[Budget] = []
    exported = _exported_doubts(functions)
    try:
        with _held(functions):
            for size in batches:
                budgets.append(Budget(limit / len(batches)))
                results.append(
                    _explained(
                        functions, graph, size, prediction, try_techniques, time_limit, tell, budgets[-1], examples
                    )
                )
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
        model=functions.servable.name,
        opened_as=model if isinstance(model, str) else f"keras.Model {functions.servable.name}",
        training=training,
        threads=used,
        environment=Environment.here(),
        roofs=roofs_of(known, used),
        batches=tuple(results),
        traces=graph.experimental_get_tracing_count(),
        doubts=(*doubts, *exported, *doubts_about(known, times, results)),
    )


def _functions_of(servable: Servable, training: bool) -> ModelFunctions:
    """What there is to call of a model.

    Raises:
        HardwareError: it cannot be trained.
    """
    net, pack = servable.net, servable.pack
    if training:
        function = training_pass(servable)
        return ModelFunctions(servable, function, function, True, _layer_names(net))
    if net is None:
        return ModelFunctions(servable, forward_pass(servable), None, False, ())
    eager = lambda *tensors: net(*pack(tensors), training=False)  # noqa: E731  # in float32 while it is held
    return ModelFunctions(servable, forward_pass(servable), eager, False, _layer_names(net))


@contextlib.contextmanager
def _held(functions: ModelFunctions) -> Iterator[None]:
    """Have all ways of calling a net compute the same meanwhile, and leave it as it was.

    Forward alone it computes as an export does, when it is called eagerly too. To train it stays as it is, and in the
    end it gets its variables back.
    """
    net = functions.servable.net
    with contextlib.ExitStack() as stack:
        if net is not None and functions.training:
            stack.enter_context(restoring(net))
        elif net is not None:
            stack.enter_context(computing_in(net, "float32"))
            stack.enter_context(in_keras_form(net))
        yield


def _exported_doubts(functions: ModelFunctions) -> list[Doubt]:
    """What is measured otherwise than the net itself computes."""
    net = functions.servable.net
    if net is None or functions.training:
        return []
    policies = sorted({layer.dtype_policy.name for layer in layers_to_switch(net, "float32")})
    words = {}
    if policies:
        words["float32"] = f"measured in float32, as an export computes, and not in its own {', '.join(policies)}"
    if faster := len(faster_layers(net)):
        words["Keras's form"] = f"measured with {faster} fused layers in Keras's form, as an export computes"
    advice = "with training it is measured as it is"
    return [Doubt(name=name, words=one, advice=advice) for name, one in words.items()]


def _layer_names(net: Any) -> tuple[str, ...]:
    """The layers of a net; in place of nets within it, theirs."""
    names: list[str] = []
    for layer in net.layers:
        inner = _layer_names(layer) if isinstance(layer, keras.Model) else ()
        names += inner or (layer.name,)
    return tuple(dict.fromkeys(names))


def _explained(
    functions: ModelFunctions,
    graph: Any,
    batch: int,
    prediction: KernelPredictor,
    try_techniques: bool,
    time_limit: float,
    tell: StepListener,
    budget: Budget,
    examples: Any,
) -> Explained:
    """Explain the model at a batch size: its calls and kernels first, then what there is time for."""

    def know(first: Examined) -> None:
        for call in first.calls:
            tell.know(call_words(call))
        tell.begin(f"batch {batch}: the kernels alone")

    tell.begin(f"batch {batch}: eager and graph")
    arrays = functions.servable.signature.random_inputs(batch)
    examined = examine(
        graph, arrays, prediction, eager=functions.eager, budget=budget, time_limit=time_limit,
        on_progress=tell.show, on_first=know,
    )  # fmt: skip
    works = _works(graph, arrays, examined.kernels)
    call = next(one.seconds for one in examined.calls if one.way == "graph")

    step = None
    if functions.training:
        tell.begin(f"batch {batch}: a step of fit, in parts")
        step = budget.run(
            "the parts of a step", 2 * time_limit,
            lambda: explain_step(functions.servable, batch, examples, time_limit=2 * time_limit, on_progress=tell.show),
            None,
        )  # fmt: skip
    prediction.times.until = budget.until(0.5, LEAST_SECONDS)
    tell.begin(f"batch {batch}: what would help")
    larger, half = None, None
    if batch < LARGER:
        runs = RUNS_ELSEWHERE * call * LARGER / batch
        larger = budget.run(f"batch {LARGER}", runs, lambda: _at_batch(functions, LARGER, prediction), None)
    if _computes_in_half(functions, prediction):
        half = budget.run("bfloat16", RUNS_ELSEWHERE * call, lambda: _in_half(functions, batch, prediction), None)
    tell.begin(f"batch {batch}: what XLA makes of it")
    compiling = SECONDS_TO_COMPILE * len(works)  # XLA cannot be stopped while it compiles
    without: tuple[Xla, tuple[Work, ...]] = (not_asked(works, NOT_ASKED), ())
    xla, xla_kernels = budget.run("XLA", compiling, lambda: xla_of(functions.function, arrays, works), without)
    tell.begin(f"batch {batch}: does the time move as it should?")
    prediction.times.until = budget.until(0.8)
    interventions: list[Intervention] = budget.run(
        "the test of what they wait for", 2 * time_limit,
        lambda: _interventions(functions, graph, examined, batch, prediction, time_limit, tell), [],
    )  # fmt: skip
    whole = Work.sum("net", works)
    explained = Explained(
        batch=batch,
        flops=whole.flops,
        bytes=whole.bytes,
        calls=examined.calls,
        comparison=examined.comparison,
        layers=layers_of(examined.kernels, functions.layers),
        tracing_cost=examined.tracing_cost,
        disturbance=examined.disturbance,
        xla=xla,
        techniques=suggestions(
            examined, batch, prediction, xla, xla_kernels, larger, half, deployable=not functions.training
        ),
        interventions=tuple(interventions),
        step=step,
    )
    if try_techniques:
        tell.begin(f"batch {batch}: trying what would help")
        plain = explained
        explained = budget.run(
            "the trial of what would help", time_limit,
            lambda: try_out(
                plain, functions.servable, functions.function, functions.eager, time_limit, on_progress=tell.show
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
    function: Callable[..., Any], functions: ModelFunctions, batch: int, prediction: KernelPredictor, way: str
) -> Elsewhere:
    """The kernels of a function at a batch size, run once."""
    arrays = functions.servable.signature.random_inputs(batch)
    concrete = tf.function(function).get_concrete_function(*[tf.constant(array) for array in arrays])
    with Traced(concrete, arrays) as traced:
        return Elsewhere(way, kernels_of(traced.operations(runs=1), prediction), batch)


def _at_batch(functions: ModelFunctions, batch: int, prediction: KernelPredictor) -> Elsewhere | None:
    """The kernels at another batch size."""
    return _elsewhere(functions.function, functions, batch, prediction, f"batch {batch}")


def _computes_in_half(functions: ModelFunctions, prediction: KernelPredictor) -> bool:
    """Whether it is the forward pass of a Keras net, on a machine whose products in bfloat16 were measured."""
    measured = {one.dtype for one in prediction.ceilings.products if one.threads == prediction.threads}
    return functions.servable.net is not None and not functions.training and "bfloat16" in measured


def _in_half(functions: ModelFunctions, batch: int, prediction: KernelPredictor) -> Elsewhere | None:
    """The kernels in bfloat16."""
    half = forward_pass(functions.servable.variant("bfloat16"))
    return _elsewhere(half, functions, batch, prediction, "bfloat16")


def _interventions(
    functions: ModelFunctions,
    graph: Any,
    examined: Examined,
    batch: int,
    prediction: KernelPredictor,
    time_limit: float,
    tell: StepListener,
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
    changed = _elsewhere(functions.function, functions, other, prediction, f"batch {other}")
    stays = calls["graph"].between
    before, after = (examined.predicted(kernel_seconds(one.kernels)) for one in (examined, changed))
    expected = (stays + after) / (stays + before)
    ours, others = (
        [tf.constant(array) for array in functions.servable.signature.random_inputs(size)] for size in (batch, other)
    )
    again = tf.function(functions.function)  # so that the traces of the batches asked for can be counted
    found.append(
        intervene(
            f"batch {other} in place of {batch}, as a graph", calls["graph"].bound,
            lambda: graph(*ours), lambda: again(*others), expected, time_limit=time_limit, on_progress=tell.show,
        )
    )  # fmt: skip
    return found
