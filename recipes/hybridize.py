"""What does leaving the interpreter buy?

Command: python recipes/hybridize.py, or tfperf run hybridize
Needs: TensorFlow; no GPU, no data.
Time: about 40 s; with --quick about 15 s.
Source: 1000 calls of get_net at batch 1 took 1.2769 s eagerly and 0.5811 s as a graph: 2.2 times faster.
Expect: one net called in five ways, side by side, from Keras' predict to a concrete function, with equal
    answers; then the retracing trap, which gives all of it away, with the traces counted.
"""

import tensorflow as tf

from tfperf import Benchmark, Recipe, check_agreement, compare, get_net

SOURCE_RATIO = 1.2769 / 0.5811  # eager seconds by graph seconds, as the source reports them
TOLERANCE = 1e-5  # relative; the compilers may reorder float32 sums, nothing more


def main(recipe: Recipe) -> None:
    """Call one net in five ways."""
    tf.keras.utils.set_random_seed(recipe.flags.seed)
    x = tf.random.normal([recipe.flags.batch, 512])  # (batch, features)
    net = get_net(seed=recipe.flags.seed)

    # The source's own measurement, loop and clock included.
    calls = 100 if recipe.flags.quick else 1000
    graph = tf.function(net)
    graph(x)  # the source's first call traces inside the timed loop; here it is apart
    with Benchmark(f"eager, {calls} calls"):
        for _ in range(calls):
            net(x)
    with Benchmark(f"graph, {calls} calls"):
        for _ in range(calls):
            graph(x)

    # The same net, every layer between the caller and the kernels taken away in turn.
    compiled = tf.function(net, jit_compile=True)
    concrete = graph.get_concrete_function(x)  # no look-up of a trace by the arguments' types
    candidates = {
        "predict": lambda x: net.predict(x, verbose=0),  # a tf.data pipeline, callbacks, NumPy, for each call
        "eager": net,
        "graph": graph,
        "XLA": compiled,
        "concrete function": concrete,
    }

    recipe.console.print("\nAre the answers the same?")
    for name, function in candidates.items():
        recipe.add(check_agreement(name, function(x), net(x), TOLERANCE))
    program = compiled.experimental_get_compiler_ir(x)(stage="optimized_hlo")  # what XLA made of it
    recipe.fact("XLA compiled the graph", "HloModule" in program)

    with recipe.progress("five ways, side by side") as show:
        comparison = compare(
            candidates, args=(x,), time_limit=recipe.flags.time_limit, seed=recipe.flags.seed, on_progress=show
        )
    recipe.add(comparison)

    graph_ratio = comparison.ratio("eager", "graph")
    against = "above" if graph_ratio.low > SOURCE_RATIO else "not above"
    fastest = min(comparison.measurements, key=lambda m: m.median)
    slowest = max(comparison.measurements, key=lambda m: m.median)
    recipe.means(
        f"The graph is {graph_ratio.estimate:.1f} times as fast as eager, at least {graph_ratio.low:.1f} times: "
        f"{against} the source's {SOURCE_RATIO:.1f}."
    )
    recipe.means(
        f"From {slowest.name} to {fastest.name} it is {slowest.median / fastest.median:.0f} times, with equal answers: "
        "the arithmetic is the same, so all that went was spent around it."
    )
    show_retracing(recipe)
    recipe.plot(lambda figure: draw(figure, comparison))


def show_retracing(recipe: Recipe) -> None:
    """Count the traces of one function called with ever new shapes, and with ever new Python numbers."""
    tf.get_logger().setLevel("ERROR")  # TensorFlow warns of what is done here on purpose
    net = get_net(seed=recipe.flags.seed)
    batches = [tf.random.normal([size, 512]) for size in range(1, 5)]  # (size, features), four sizes

    every_shape = tf.function(net, reduce_retracing=False)
    any_batch = tf.function(net, input_signature=[tf.TensorSpec([None, 512])])
    scaled = tf.function(lambda x, scale: net(x) * scale)
    for size, batch in enumerate(batches, start=1):
        every_shape(batch)
        any_batch(batch)
        scaled(batches[0], float(size))  # a Python number is a constant of the graph
    by_tensor = tf.function(lambda x, scale: net(x) * scale)
    for size in range(1, 5):
        by_tensor(batches[0], tf.constant(float(size)))

    trace = Benchmark("trace", time_limit=1.0, min_samples=5).measure(
        lambda: tf.function(net).get_concrete_function(batches[0])
    )
    recipe.add(trace)
    counts = {
        "4 batch sizes": every_shape.experimental_get_tracing_count(),
        "4 batch sizes, batch left open in the signature": any_batch.experimental_get_tracing_count(),
        "4 Python numbers": scaled.experimental_get_tracing_count(),
        "4 numbers as tensors": by_tensor.experimental_get_tracing_count(),
    }
    recipe.console.print("Traces after four calls:")
    for what, count in counts.items():
        recipe.console.print(f"  {count}  {what}")
        recipe.fact(f"traces: {what}", count)
    recipe.means(
        f"Each new shape or Python value traces the function anew, {trace.median * 1e3:.0f} ms each time: "
        "leave the batch open in the signature and pass numbers as tensors, and there is one trace."
    )


def draw(figure, comparison) -> None:
    """Draw the five times, and their distributions with the tails."""
    from tfperf.report.plots import distribution_plot, interval_plot

    left, right = figure.subplots(1, 2, width_ratios=[3, 2])
    interval_plot(left, comparison, "One call of get_net")
    distribution_plot(right, comparison.measurements, "All samples")


if __name__ == "__main__":
    Recipe(__file__, batch=1).run(main)
