"""Why does a larger batch raise arithmetic intensity?

Source: 003, 其他
Claim: an open question: should the work and the traffic of a batch not both grow in proportion to it, so that their
    ratio stays? The source names no figure.
Expect: the answer by a formula, counted in TensorFlow's graph and in XLA's program; the points of a dense layer as they
    move right in the roofline; and a whole net's intensity and throughput by batch.
Holds not: where there are no weights: a pointwise operation has the same intensity at any batch.
Needs: TensorFlow; no GPU, no data.
Time: about 40 s on 2 cores; with --quick about 15 s.
Shows: intensity_of_dense, intensity_of_pointwise
Try:
    - --batch 8: the last points are still left of the knee, so the throughput still grows.
    - --model resnet18: a convolution uses each weight many times, so its intensity grows less with the batch.
"""

import numpy as np
import tensorflow as tf

from tfperf import Recipe
from tfperf.hardware import Work, graph_work, hlo_work, program_of


def intensity_of_dense(batch, inputs, outputs):
    """Divide work by traffic: only the work grows in proportion, as the weights are read once a batch."""
    flops = 2 * batch * inputs * outputs
    weights, examples = inputs * outputs, batch * (inputs + outputs)
    return flops / (4 * (weights + examples))


def intensity_of_pointwise(batch, numbers):
    """Divide work by traffic where there are no weights: both grow with the batch, and the ratio stays."""
    return batch * numbers / (4 * 2 * batch * numbers)


WIDTH = 4096  # inputs and outputs of the dense layer, whose weights are 64 MiB: more than the caches hold
SIDE = 2048  # of the matrices whose product shows how fast this machine can multiply
QUICK_BATCH = 128


def main(recipe: Recipe) -> None:
    """Count the intensity of growing batches, and measure what it does to time."""
    largest = min(recipe.flags.batch, QUICK_BATCH) if recipe.flags.quick else recipe.flags.batch
    batches = [2**power for power in range(largest.bit_length())]
    opened = recipe.open_model(batch=1)
    if not opened.is_yours:
        measure_dense(recipe, batches[::3] if recipe.flags.quick else batches)
    measure_net(recipe, opened, batches[: 7 if opened.is_yours else None])


def count(name: str, function, *tensors) -> list[float]:
    """Count the intensity of a function in TensorFlow's graph, and in XLA's program."""
    graph = Work.sum(name, graph_work(tf.function(function).get_concrete_function(*tensors)))
    return [graph.intensity, Work.sum(name, hlo_work(program_of(function, tensors))).intensity]


def measure_dense(recipe: Recipe, batches: list[int]) -> None:
    """Check the formulas, and compare a dense layer's time for each batch with the roofs."""
    x = tf.random.normal([batches[-1], WIDTH], seed=recipe.flags.seed)
    weights = tf.random.normal([WIDTH, WIDTH], stddev=WIDTH**-0.5, seed=recipe.flags.seed)
    for m in [m for m in batches if m.bit_length() % 3 == 1]:
        dense, plain = intensity_of_dense(m, WIDTH, WIDTH), intensity_of_pointwise(m, WIDTH)
        recipe.fact(f"FLOP/byte: dense, batch {m}", dense)
        recipe.agrees(
            f"dense, batch {m}, counted",
            count("dense", lambda x, w: tf.matmul(x, w), x[:m], weights),
            [dense] * 2,
            0.05,
        )
        recipe.agrees(
            f"pointwise, batch {m}, counted", count("pointwise", lambda x: tf.nn.relu(x), x[:m]), [plain] * 2, 0.05
        )
    rows = tf.concat([tf.matmul(x[row : row + 1], weights) for row in range(len(x[:16]))], axis=0)
    recipe.agrees("a batch, against its examples one by one", tf.matmul(x[:16], weights), rows)
    first, last = (intensity_of_dense(m, WIDTH, WIDTH) for m in (1, batches[-1]))
    recipe.finds(
        f"The weights are read once a batch, whatever its size: from batch 1 to {batches[-1]} a dense layer's work "
        f"grows {batches[-1]} times, and its intensity from {first:.2f} to {last:.0f} operations a byte."
    )
    square = weights[:SIDE, :SIDE]
    ways = {f"dense, batch {m}": lambda m=m: tf.matmul(x[:m], weights) for m in batches}
    ways |= {"reading": lambda: tf.reduce_max(weights), "product": lambda: tf.matmul(square, square)}
    comparison = recipe.compare(ways, tolerance=None, what="a dense layer at each batch, and the roofs")
    seconds = {m: comparison[f"dense, batch {m}"].median for m in batches}
    peak = 2 * SIDE**3 / comparison["product"].median
    bandwidth = 4 * WIDTH**2 / min(comparison["reading"].median, seconds[1])
    knee, seen = peak / bandwidth * 2, max(m * seconds[1] / seconds[m] for m in batches)
    recipe.fact("batch at the knee, from the roofs", knee)
    recipe.fact("throughput by that of one example, at best", seen)
    recipe.finds(
        f"The roofs, {bandwidth / 1e9:.1f} GB/s and {peak / 1e9:.0f} GFLOP/s, meet at a batch of {knee:.0f}: so many "
        f"times the throughput of one example is to be had. Measured: {seen:.0f} times."
    )
    recipe.plot(draw, seconds, peak, bandwidth)


def measure_net(recipe: Recipe, opened, batches: list[int]) -> None:
    """Count a whole net's intensity for each batch, and measure its throughput."""
    graph, ways, found = tf.function(opened.net, reduce_retracing=False), {}, []
    for m in batches[::2]:
        args = opened.arguments(opened.batch_of(m))
        intensity = Work.sum("net", graph_work(graph.get_concrete_function(*args))).intensity
        recipe.fact(f"FLOP/byte: {opened.name}, batch {m}", intensity)
        ways[f"batch {m}"] = lambda args=args: graph(*args)
        found.append((m, intensity))
    comparison = recipe.compare(ways, tolerance=None, what=f"{opened.name} at each batch")
    speeds = [m / comparison[f"batch {m}"].median for m, _ in found]
    rows = [(m, f"{value:.2f}", f"{speed:,.0f}") for (m, value), speed in zip(found, speeds, strict=True)]
    recipe.table(("batch", "FLOP/byte", "examples a second"), rows)
    (one, low), (many, high) = found[0], found[-1]
    recipe.finds(
        f"{opened.words}: from batch {one} to {many} its intensity goes from {low:.2g} to {high:.2g} operations a "
        f"byte, and its throughput to {max(speeds) / speeds[0]:.1f} times, at batch {found[int(np.argmax(speeds))][0]}."
    )
    if opened.is_yours:
        recipe.plot(lambda figure: figure.subplots().loglog([m for m, _ in found], speeds, "o-"))


def draw(figure, seconds: dict, peak: float, bandwidth: float) -> None:
    """Draw the roofline with a point for each batch of the dense layer."""
    axes, across = figure.subplots(), np.geomspace(0.25, 1000, 200)
    axes.loglog(across, np.minimum(peak, bandwidth * across) / 1e9, color="black", label="roofs")
    points = [(intensity_of_dense(m, WIDTH, WIDTH), 2 * m * WIDTH**2 / took / 1e9) for m, took in seconds.items()]
    axes.loglog(*zip(*points, strict=True), "o", label="dense layer")
    for m, point in zip(seconds, points, strict=True):
        axes.annotate(f"batch {m}", point, (6, -12), textcoords="offset points")
    axes.set(xlabel="floating-point operations a byte", ylabel="GFLOP/s", title="Roofline")
    axes.legend(loc="lower right")


if __name__ == "__main__":
    Recipe(__file__, batch=512, model="mlp").run(main)
