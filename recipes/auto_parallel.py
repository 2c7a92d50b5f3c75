"""Does the runtime run independent work side by side?

Source: 000, 自动并行
Claim: a framework sees in the graph which work needs which, and runs the rest side by side: two devices together take
    less than the sum of both alone, and so do computing and copying. The source names no figure.
Expect: two independent branches alone, in turns and together, with a timeline; computing with copies beside it.
Holds not: where one operation takes all cores by itself; and eager code runs operations in the order of the calls.
Needs: TensorFlow; no GPU, no data; 2 cores.
Time: about 30 s on 2 cores; with --quick about 15 s.
Shows: together, in_turns, copy_while_computing
Try: --threads 2: each operation uses both cores, so together gains little over in turns.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import tensorflow as tf

from tfperf import Flag, Recipe
from tfperf.hardware import usable_cores


def together(first, second):
    """Put independent work into one graph: the runtime runs both branches at once."""
    return tf.function(lambda: [first(), second()], autograph=False)


def in_turns(first, second):
    """Tell the graph that one branch waits for the other: as if it needed its result."""

    def both():
        result = first()
        with tf.control_dependencies(tf.nest.flatten(result)):
            return [result, second()]

    return tf.function(both, autograph=False)


def copy_while_computing(compute, rounds):
    """Copy each result in another thread while the next one is computed."""
    with ThreadPoolExecutor(1) as copier:
        copies, last = [], None
        for _ in range(rounds):
            result = compute()
            copies += [last.result()] if last else []  # at most one copy is under way
            last = copier.submit(result.numpy)
        return [*copies, last.result()]


SIZE, SIDE, INNER, ROUNDS = 512, 2048, 32, 8  # matrices of a branch; of the product that is copied; rounds of that
NAMES = ("one", "other")
BOTH = {"in turns": in_turns, "together": together}


def main(recipe: Recipe) -> None:
    """Run two branches, and computing and copying, alone and together."""
    tf.config.threading.set_intra_op_parallelism_threads(recipe.flags.threads)  # cores for one operation
    weights = np.linalg.qr(np.random.default_rng(recipe.flags.seed).standard_normal((SIZE, SIZE)))[0].astype(np.float32)
    gpus = [gpu.name for gpu in tf.config.list_logical_devices("GPU")]
    places = (gpus * 2)[:2] or ["CPU:0", "CPU:0"]
    branches = [partial(branch, *one, recipe.flags.products, weights) for one in zip(places, NAMES, strict=True)]
    first, second = (partial(one, tf.constant(weights * sign)) for one, sign in zip(branches, (1, -1), strict=True))
    one, other = (tf.function(function, autograph=False) for function in (first, second))
    both = {name: make(first, second) for name, make in BOTH.items()}
    for name, function in both.items():
        recipe.agrees(f"branches {name}", function(), [one(), other()], 0.0)
    cold = recipe.measure("a first call: traced, then run", lambda: together(first, second)(), min_samples=3)
    comparison = recipe.compare({"one alone": one, "the other alone": other, **both}, tolerance=None)
    tell(recipe, "two branches", comparison)
    times = cold.median / comparison["together"].median
    recipe.finds(f"Warm up before you measure: a first call traces the graph, and takes {times:.1f} times a later one.")
    for name, function in both.items():
        watch, cpu = time.perf_counter(), time.process_time()
        _ = [function() for _ in range(20)]
        busy = (time.process_time() - cpu) / (time.perf_counter() - watch)
        recipe.fact(f"cores at work, branches {name}", busy)
        recipe.finds(f"Branches {name} keep {busy:.1f} of {usable_cores()} cores at work.")
    tell(recipe, "copies", compare_copies(recipe))
    recipe.corrects("the framework finds parallel work inside a graph only; eager calls run in the order of the calls.")
    recipe.plot(draw, {name: timeline(make, branches, weights, recipe.flags.threads) for name, make in BOTH.items()})


def branch(device: str, name: str, products: int, weights: np.ndarray, x):
    """Multiply matrices one after the other."""
    with tf.device(device), tf.name_scope(name):
        x = tf.identity(x)
        for _ in range(products):
            x = tf.matmul(x, weights)
        return x


def timeline(both, branches: list, x: np.ndarray, threads: int) -> list[tuple[str, float, float]]:
    """Trace one run of both branches: of each product its name, when it began, and how long it took, in ms."""
    config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=threads)
    options = tf.compat.v1.RunOptions(trace_level=tf.compat.v1.RunOptions.SOFTWARE_TRACE)
    with tf.Graph().as_default(), tf.compat.v1.Session(config=config) as session:
        given, metadata = [tf.compat.v1.placeholder(tf.float32, x.shape) for _ in branches], tf.compat.v1.RunMetadata()
        results = both(*(partial(one, tensor) for one, tensor in zip(branches, given, strict=True))).python_function()
        for _ in range(3):  # the third is warm
            session.run(results, dict.fromkeys(given, x), options=options, run_metadata=metadata)
    nodes = [node for device in metadata.step_stats.dev_stats for node in device.node_stats]
    nodes = [
        (n.node_name, n.all_start_micros / 1e3, n.op_end_rel_micros / 1e3) for n in nodes if "MatMul" in n.node_name
    ]
    return [(name, start - min(one[1] for one in nodes), length) for name, start, length in nodes]


def compare_copies(recipe: Recipe):
    """Compare computing and copying, alone, in turns and together."""
    generator = np.random.default_rng(recipe.flags.seed)
    tall = tf.constant(generator.standard_normal((SIDE, INNER)), tf.float32)
    compute = tf.function(lambda: tf.matmul(tall, tall, transpose_b=True))
    ready = compute()
    ways = {
        "computing alone": lambda: [compute() for _ in range(ROUNDS)],
        "copying alone": lambda: [ready.numpy() for _ in range(ROUNDS)],  # from a GPU, or to other memory
        "copies in turns": lambda: [compute().numpy() for _ in range(ROUNDS)],
        "copies together": lambda: copy_while_computing(compute, ROUNDS),
    }
    return recipe.compare(ways, tolerance=0.0, what="computing and copying")


def tell(recipe: Recipe, what: str, comparison) -> None:
    """Say what together is of the sum, and of the longer of the two."""
    one, other, _, both = (m.median for m in comparison.measurements)
    ratio = comparison.ratio(*(m.name for m in comparison.measurements[2:]))
    recipe.fact(f"share of the sum, {what}: together", both / (one + other))
    recipe.finds(
        f"{what}: together they take {both / (one + other):.0%} of the sum of both alone, of which the longer is "
        f"{max(one, other) / (one + other):.0%}. Against in turns: {ratio.verdict}, {ratio.estimate:.2f} times as fast."
    )


def draw(figure, timelines: dict) -> None:
    """Draw when each product of each branch ran."""
    axes = figure.subplots(2, 1, sharex=True)
    for panel, (title, products) in zip(axes, timelines.items(), strict=True):
        for row, name in enumerate(NAMES):
            bars = [(start, length) for product, start, length in products if product.startswith(f"{name}/")]
            panel.broken_barh(bars, (row - 0.4, 0.8), edgecolor="white", linewidth=2, color=f"C{row}")
        panel.set_yticks([0, 1], ["one branch", "the other"])
        panel.set_title(f"Branches {title}", loc="left")
    axes[-1].set_xlabel("ms")


if __name__ == "__main__":
    threads, products = Flag(1, "cores for one operation"), Flag(8, "matrix products in each branch")
    Recipe(__file__, batch=1, threads=threads, products=products).run(main)
