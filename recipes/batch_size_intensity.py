"""Why does a larger batch raise arithmetic intensity?

Source: 003, 其他
Claim: an open question: should the work and the traffic of a batch not both grow in proportion to it, so that their
    ratio stays? The source names no figure.
Expect: the answer for a dense layer, a convolution and a pointwise operation, by a formula and counted in two ways;
    then the dense layer's points as they move to the right in the roofline, up to the batch from which more examples
    no longer cost less each.
Holds not: where there are no weights: a pointwise operation has the same intensity at any batch.
Needs: TensorFlow; no GPU, no data.
Time: about 30 s on 2 cores; with --quick about 10 s.
Shows: Kind
Try: --batch 64: the points end below the knee, so the throughput still grows at the last of them.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfperf import Recipe, compare, get_net
from tfperf.hardware.counting import Work, graph_work, hlo_work, program_of

WIDTH = 4096  # inputs and outputs of the dense layer, whose weights are 64 MiB: more than the caches hold
SIDE, CHANNELS = 28, 64  # of the images that the convolution takes and gives
FILTERS = 3 * 3 * CHANNELS * CHANNELS
SQUARE = 2048  # of the matrices whose product shows how fast this machine can multiply
TOLERANCE = 0.05  # of what is counted, against the formula
ROUNDING = 1e-5  # relative, of a batch's answers against those of its examples one by one
QUICK_BATCH = 128


class Kind(NamedTuple):
    """An operation, and its work by hand."""

    run: Callable
    example: tuple[int, ...]
    weights: tuple[tuple[int, ...], ...]
    flops: int  # of one example
    weight_bytes: int  # read once a batch
    example_bytes: int  # read and written for one example

    def bytes(self, batch: int) -> int:
        """Only one of the two terms grows with the batch: this is the answer."""
        return self.weight_bytes + batch * self.example_bytes

    def intensity(self, batch: int) -> float:
        """Floating-point operations a byte."""
        return batch * self.flops / self.bytes(batch)


DENSE = Kind(lambda x, w: tf.matmul(x, w), (WIDTH,), ((WIDTH, WIDTH),), 2 * WIDTH**2, 4 * WIDTH**2, 4 * 2 * WIDTH)
CONVOLUTION = Kind(
    lambda x, w: tf.nn.conv2d(x, w, 1, "SAME"),
    (SIDE, SIDE, CHANNELS),
    ((3, 3, CHANNELS, CHANNELS),),
    2 * SIDE**2 * FILTERS,
    4 * FILTERS,
    4 * 2 * SIDE**2 * CHANNELS,
)
POINTWISE = Kind(lambda x: tf.nn.relu(x), (WIDTH,), (), WIDTH, 0, 4 * 2 * WIDTH)


def main(recipe: Recipe) -> None:
    """Count the intensity of three operations for growing batches, and measure what it does to time."""
    largest = min(recipe.flags.batch, QUICK_BATCH) if recipe.flags.quick else recipe.flags.batch
    batches = [2**power for power in range(largest.bit_length())]
    tf.random.set_seed(recipe.flags.seed)
    recipe.console.print("\nDoes the formula say what is counted? And does a batch answer as its examples do?")
    count(recipe, "pointwise", POINTWISE, batches)
    images, filters = count(recipe, "convolution", CONVOLUTION, batches)
    x, weights = count(recipe, "dense", DENSE, batches)
    one_by_one = tf.concat([tf.matmul(x[row : row + 1], weights) for row in range(len(x[:16]))], axis=0)
    recipe.agrees("a batch", tf.matmul(x[:16], weights), one_by_one, ROUNDING)
    explain(recipe, batches[-1])

    square, few = weights[:SQUARE, :SQUARE], batches[:7:3]
    candidates = {f"dense, batch {m}": partial(DENSE.run, x[:m], weights) for m in batches}
    candidates |= {f"convolution, batch {m}": partial(CONVOLUTION.run, images[:m], filters) for m in few}
    candidates |= {"reading": lambda: tf.reduce_max(weights), "product": lambda: tf.matmul(square, square)}
    with recipe.progress("all batches, side by side") as show:
        comparison = compare(candidates, time_limit=recipe.flags.time_limit, seed=recipe.flags.seed, on_progress=show)
    recipe.add(comparison)
    seconds = {name: comparison[name].median for name in candidates}
    peak = 2 * SQUARE**3 / seconds["product"]
    bandwidth = DENSE.weight_bytes / min(seconds["reading"], seconds["dense, batch 1"])
    one = seconds["dense, batch 1"]
    knee = DENSE.bytes(1) / bandwidth * peak / DENSE.flops
    seen = max(m * one / seconds[f"dense, batch {m}"] for m in batches)
    for name, value in (("FLOP/s, the flat roof", peak), ("bytes/s, the slanted roof", bandwidth)):
        recipe.fact(name, value)
    recipe.fact("batch at the knee, from the roofs", knee)
    recipe.fact("batch at the knee, measured", seen)
    recipe.finds(
        f"The roofs, {bandwidth / 1e9:.1f} GB/s and {peak / 1e9:.0f} GFLOP/s, meet at {peak / bandwidth:.0f} "
        f"operations a byte, where the dense layer comes with a batch of {knee:.0f}: so many examples take as long to "
        f"compute as the weights to read, and so many times the throughput is to be had. Measured: {seen:.0f} times."
    )
    slower = seconds[f"dense, batch {batches[-1]}"] / one
    recipe.finds(
        f"A batch of {batches[-1]} takes {slower:.1f} times as long as one example. Below the knee more examples cost "
        "little; above it each costs its whole time, and all wait for the last."
    )
    recipe.plot(lambda figure: draw(figure, seconds, batches, few, peak, bandwidth))


def count(recipe: Recipe, name: str, kind: Kind, batches: list[int]) -> list:
    """Compare the formula with TensorFlow's graph and with XLA's program; the tensors of the largest batch."""
    tensors = [tf.random.normal([batches[-1], *kind.example])]
    tensors += [tf.random.normal(shape, stddev=np.prod(shape[:-1]) ** -0.5) for shape in kind.weights]
    ratios = []  # counted by formula, (batches, 2)
    for m in batches:
        given = [tensors[0][:m], *tensors[1:]]
        graph = Work.sum(name, graph_work(tf.function(kind.run).get_concrete_function(*given)))
        program = Work.sum(name, hlo_work(program_of(kind.run, given)))
        ratios.append([graph.intensity / kind.intensity(m), program.intensity / kind.intensity(m)])
        recipe.fact(f"FLOP/byte: {name}, batch {m}", graph.intensity)
    for where, found in zip(("TensorFlow's graph", "XLA's program"), np.transpose(ratios), strict=True):
        recipe.agrees(f"{name}, counted in {where}", found, np.ones_like(found), TOLERANCE)
    return tensors


def explain(recipe: Recipe, last: int) -> None:
    """Answer the question."""
    recipe.finds(
        f"The weights are read once a batch, whatever its size: from batch 1 to {last} the dense layer's work grows "
        f"{last} times, its traffic {DENSE.bytes(last) / DENSE.bytes(1):.2f} times, and its intensity from "
        f"{DENSE.intensity(1):.2f} to {DENSE.intensity(last):.0f} operations a byte."
    )
    recipe.finds(
        f"Both do grow alike where there are no weights (pointwise: {POINTWISE.intensity(1):.3f} at any batch), and "
        "nearly so where one example alone uses each weight many times (convolution: "
        f"{CONVOLUTION.intensity(1):.0f} to {CONVOLUTION.intensity(last):.0f})."
    )
    words = []
    for name in ("mlp", "resnet18"):
        net = get_net(name, seed=recipe.flags.seed)
        traces = [tf.function(net).get_concrete_function(tf.zeros([m, *net.input_shape[1:]])) for m in (1, 64)]
        one, many = (Work.sum(name, graph_work(traced)).intensity for traced in traces)
        recipe.fact(f"FLOP/byte: {name}, batch 1", one)
        recipe.fact(f"FLOP/byte: {name}, batch 64", many)
        words.append(f"{name} from {one:.2g} to {many:.2g}")
    recipe.finds(f"Whole nets, operation by operation, from batch 1 to 64: {', '.join(words)}.")


def draw(figure, seconds: dict, batches: list, few: list, peak: float, bandwidth: float) -> None:
    """Draw the roofline with a point for each batch, and the throughput of the dense layer."""
    left, right = figure.subplots(1, 2)
    across = np.geomspace(0.25, 1000, 200)
    left.loglog(across, np.minimum(peak, bandwidth * across) / 1e9, color="black", label="roofs")
    for name, kind, some in (("dense", DENSE, batches), ("convolution", CONVOLUTION, few)):
        rates = [m * kind.flops / seconds[f"{name}, batch {m}"] / 1e9 for m in some]
        left.loglog([kind.intensity(m) for m in some], rates, "o", label=name)
        for m, rate in list(zip(some, rates, strict=True))[::3] if kind is DENSE else []:
            left.annotate(f"batch {m}", (kind.intensity(m), rate), (6, -12), textcoords="offset points")
    left.set_xlabel("floating-point operations a byte")
    left.set_ylabel("GFLOP/s")
    left.set_title("Roofline", loc="left")
    left.legend(loc="lower right")
    speed = [m / seconds[f"dense, batch {m}"] for m in batches]
    right.loglog(batches, speed, "o-", label="measured")
    right.loglog(batches, [m * speed[0] for m in batches], "--", color="grey", label="if a batch took as long as one")
    right.axhline(peak / DENSE.flops, ls=":", color="black", label="if only arithmetic took time")
    right.set_ylim(top=3 * max(*speed, peak / DENSE.flops))
    right.set_xlabel("batch")
    right.set_ylabel("examples a second")
    right.set_title("Throughput of the dense layer", loc="left")
    right.legend(loc="lower right")


if __name__ == "__main__":
    Recipe(__file__, batch=512).run(main)
