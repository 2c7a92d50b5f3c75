"""What does leaving the interpreter buy?

Source: 000, 混合式编程
Claim: `tf.function` turns a net into a graph; 1000 calls of get_net at batch 1 take 1.2769 s eagerly and 0.5811 s as a
    graph, 2.2 times as fast. The compiler can fold `fancy_func(1, 2, 3, 4)` into `print(10)`.
Expect: five ways to call one net, with equal outputs; the source's program as traced and as run; traces counted.
Holds not: for nets whose kernels take milliseconds, where the interpreter is a small share of the time; on a CPU XLA
    makes some nets slower (MobileNetV2 5 times).
Needs: TensorFlow; no GPU, no data.
Time: about 40 s; with --quick about 15 s.
Shows: as_graph, as_xla, as_one_trace, as_graph_for_any_batch
Try:
    - --batch 256: the kernels take longer and Python does not, so the graph gains less.
    - --model resnet18 --batch 64: large convolutions, so the graph gains less and XLA may lose.
"""

import time

import keras
import tensorflow as tf

from tfperf import Recipe
from tfperf.report import interval_plot


def as_graph(net):
    """Trace the net once; later calls run the graph without Python between its layers."""
    return tf.function(net)


def as_xla(net):
    """Have XLA compile the graph into machine code for one shape of input."""
    return tf.function(net, jit_compile=True)


def as_one_trace(net, *args):
    """Skip the choice of a trace too: the concrete function takes these shapes and types only."""
    return tf.function(net).get_concrete_function(*args)


def as_graph_for_any_batch(net, x):
    """Leave the batch size open: one trace serves every batch, where each new shape would trace anew."""
    return tf.function(net, input_signature=[tf.TensorSpec([None, *x.shape[1:]], x.dtype)])


def main(recipe: Recipe) -> None:
    """Call one net in five ways, then look at what the graph is and what it costs."""
    opened = recipe.open_model()
    net, args = opened.net, opened.args
    xla = as_xla(net)
    ways = {"eager": net, "graph": as_graph(net), "XLA": xla, "concrete function": as_one_trace(net, *args)}
    ways |= {"predict": lambda x: net.predict(x, verbose=0)} if len(args) == 1 else {}  # it hands over one argument
    comparison = recipe.compare(ways, *args, what="each way to call the net")
    recipe.fact("XLA compiled the graph", "HloModule" in xla.experimental_get_compiler_ir(*args)(stage="optimized_hlo"))
    graph, fastest = comparison.ratio("eager", "graph"), min(comparison.measurements, key=lambda m: m.median)
    source = "" if opened.is_yours else f"; the source measured {1.2769 / 0.5811:.1f} times"
    recipe.finds(f"The graph of {opened.words} is {graph.estimate:.1f} times as fast as eager{source}.")
    recipe.finds(
        f"{fastest.name} is the fastest way, {comparison.ratio('eager', fastest.name).estimate:.1f} times as fast as "
        "eager, with equal outputs: the arithmetic is the same, and what went is Python around it."
    )
    count_traces(recipe)
    read_the_program(recipe)
    if not opened.is_yours:
        use_the_sources_clock(recipe, net, args)
    recipe.plot(draw, comparison, f"One call of {opened.words}")


def use_the_sources_clock(recipe: Recipe, net, args) -> None:
    """Repeat the source's loop, and read the clock it used beside a watch."""
    calls = 100 if recipe.flags.quick else 1000
    graph, rows = as_graph(net), []
    for name, function in {"eager": net, "graph, tracing included": graph, "graph": graph}.items():
        watch, cpu = time.perf_counter(), time.process_time()
        for _ in range(calls):
            function(*args)
        watch, cpu = time.perf_counter() - watch, time.process_time() - cpu
        recipe.fact(f"seconds of {calls} calls: {name}", watch)
        rows.append((name, f"{watch:.4f} s", f"{cpu:.4f} s"))
    recipe.table((f"{calls} calls", "elapsed", "by the source's clock"), rows)
    recipe.corrects(
        "time.clock left Python in 3.8, and on Linux it counted the CPU time of all threads, not the time that passes. "
        "The source's graph loop also has the tracing inside. Use time.perf_counter, after a first call."
    )


def read_the_program(recipe: Recipe) -> None:
    """Trace the source's small program, and read it before and after TensorFlow and XLA have optimized it."""

    def fancy_func():
        a, b, c, d = (tf.constant(number) for number in (1, 2, 3, 4))
        return (a + b) + (c + d)

    traced = tf.function(fancy_func).get_concrete_function().graph.as_graph_def()
    recipe.table(("traced", "operation", "of"), [(node.name, node.op, ", ".join(node.input)) for node in traced.node])
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        options, metadata = tf.compat.v1.RunOptions(output_partition_graphs=True), tf.compat.v1.RunMetadata()
        answer = session.run(fancy_func(), options=options, run_metadata=metadata)
    ran = [node.op for graph in metadata.partition_graphs for node in graph.node]
    hlo = as_xla(fancy_func).experimental_get_compiler_ir()(stage="optimized_hlo")
    recipe.fact("operations of fancy_func, as TensorFlow runs it", " ".join(ran))
    recipe.fact("XLA folded fancy_func into one constant", f"constant({answer})" in hlo)
    recipe.finds(
        f"The trace of fancy_func(1, 2, 3, 4) has {len(traced.node)} operations. TensorFlow runs {', '.join(ran)}: the "
        f"constants are folded into {answer}. XLA's program holds the constant too, and no addition."
    )
    recipe.corrects(
        "a graph is not compiled just in time, and not in MLIR by default: Grappler optimizes it, an executor runs its "
        "operations. Only jit_compile compiles. HybridSequential is MXNet's, which was retired in 2023."
    )


def count_traces(recipe: Recipe) -> None:
    """Count the traces that new shapes and Python numbers cause, and how often Python code in a graph runs."""
    net, lines, rows = keras.Sequential([keras.Input([512]), keras.layers.Dense(2)]), [], []
    xs, numbers = [tf.random.normal([size, 512]) for size in range(1, 5)], [1.0, 2.0, 3.0, 4.0]
    scaled, spied = (lambda x, scale: net(x) * scale), tf.function(lambda x: lines.append("printed") or net(x))
    calls = {
        "4 batch sizes": (tf.function(net, reduce_retracing=False), [(x,) for x in xs]),
        "4 batch sizes, batch left open in the signature": (as_graph_for_any_batch(net, xs[0]), [(x,) for x in xs]),
        "4 Python numbers": (tf.function(scaled), [(xs[0], number) for number in numbers]),
        "4 numbers as tensors": (tf.function(scaled), [(xs[0], tf.constant(number)) for number in numbers]),
        "4 equal inputs": (spied, [(xs[0],)] * 4),
    }
    for name, (function, arguments) in calls.items():
        for args in arguments:
            function(*args)
        rows.append((name, function.experimental_get_tracing_count()))
        recipe.fact(f"traces: {name}", rows[-1][1])
    recipe.table(("called with", "traces"), rows)
    trace = recipe.measure("trace", lambda: as_one_trace(net, xs[0]), min_samples=5)
    recipe.finds(
        f"Each new shape or Python number traces anew, {trace.median * 1e3:.0f} ms for one layer. Leave the batch open "
        "in the signature, pass numbers as tensors, and there is one trace."
    )
    recipe.finds(
        f"A graph costs debugging: in 4 calls Python reaches a print or a breakpoint inside {len(lines)} time, while "
        "tracing, and tensors have no values there. tf.config.run_functions_eagerly(True) brings both back."
    )


def draw(figure, comparison, title: str) -> None:
    """Draw the time of each way."""
    interval_plot(figure.subplots(), comparison, title)


if __name__ == "__main__":
    Recipe(__file__, batch=1, model="mlp").run(main)
