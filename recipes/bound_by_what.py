"""Compute, bandwidth or overhead?

Source: 003, 深度学习性能瓶颈往往是内存带宽
Claim: a model's time is compute, bandwidth or overhead, which is everything else; as bandwidth grows more slowly from
    year to year, bandwidth is the real bottleneck. The source names no figure.
Expect: ever more arithmetic on the same 64 MB, whose time at first hardly grows; four verdicts, put to the test.
Holds not: where each operation waits for the result of the one before. That latency is a fourth cause.
Needs: TensorFlow; no GPU, no data; 3 GiB of memory.
Time: about 2 minutes on 2 cores; with --quick about 30 s.
Shows: multiply_adds, bound_by, confirms
Try:
    - --megabytes 4: the call takes longer than its bytes, so 4 multiply-adds become overhead-bound.
    - tfperf explain mlp: the same verdicts for each layer of a net, or of your own in place of mlp.
"""

import numpy as np
import tensorflow as tf

from tfperf import Flag, Recipe
from tfperf.hardware import hlo_work, program_of
from tfperf.measure import format_seconds


def multiply_adds(count, chains=8):
    """Do as much arithmetic as you like in one kernel, which reads and writes each number of a variable once."""

    @tf.function(jit_compile=True)
    def change(numbers, factors):  # a variable, (n,), and an array, (2, chains): XLA would fold constants
        ends = [numbers] * min(count, chains)  # side by side; in a single chain each step waits for the one before
        for step in range(count):
            chain = step % len(ends)
            ends[chain] = ends[chain] * factors[0, chain] + factors[1, chain]
        numbers.assign(tf.add_n(ends) / len(ends))

    return change


def bound_by(seconds, tiny_seconds, flops, moved, peak, bandwidth):
    """Name what a time is bound by: the same calls on tiny inputs are overhead, the rest waits for the slower roof."""
    if tiny_seconds > seconds / 2:
        return "overhead"
    arithmetic, traffic = flops / peak, moved / bandwidth  # in FLOP/s of a large product, bytes/s of a large sum
    return "compute" if arithmetic > traffic else "bandwidth"


def confirms(bound, change, ratio):
    """Put a verdict to the test: halve or double one thing alone, and see whether the time moves as its bound does."""
    predicted = change.get(bound, 1.0)  # change: {"compute": 0.5} for half the arithmetic; ratio: time after by before
    return 0.7 < ratio / predicted < 1.4


SIDE, CHAINS = 1024, 8  # rows of the matrices whose product shows the peak; chains of multiply-adds side by side
LEFT = 1 - 2.0**-8 * np.arange(1, CHAINS + 1)  # of a number's distance to 1, after a multiply-add; exact in float32
FACTORS = np.float32([LEFT, 1 - LEFT])
FLOPS = {count: 2 * count + min(count, CHAINS) for count in (2, 4, 8, 16, 32, 64, 128)}  # with the mean of the chains


def main(recipe: Recipe) -> None:
    """Measure the roofs and what runs into them, then judge four kinds of work and test the verdicts."""
    size = recipe.flags.megabytes * 250_000
    crossing, *roofs = cross(recipe, size)
    judge(recipe, roofs, "128 multiply-adds", 128, size)
    judge(recipe, roofs, "4 multiply-adds", 4, size)
    judge(recipe, roofs, "50 tiny kernels", 4, 16, calls=50)
    judge(recipe, roofs, "128 multiply-adds in one chain", 128, size, chains=1)
    recipe.corrects("bandwidth is not always the limit: large products wait for arithmetic, small nets for the calls.")
    recipe.plot(draw, crossing, size / roofs[0], 8 * size / roofs[1])


def work(count: int, size: int, calls: int = 1, chains: int = CHAINS):
    """Make calls of multiply-adds, which move the numbers of one variable, (size,), towards 1."""
    change, numbers = multiply_adds(count, chains), tf.Variable(tf.linspace(-1.0, 1.0, size))
    return lambda: [change(numbers, FACTORS) for _ in range(calls)]


def cross(recipe: Recipe, size: int) -> tuple[dict, float, float]:
    """Do ever more with the same numbers, beside the roofs; gives FLOPs -> seconds, FLOP/s and bytes/s."""
    counts = list(FLOPS)[:: 1 + recipe.flags.quick]
    for count, chains in [*((count, min(count, CHAINS)) for count in counts), (128, 1)]:
        sample = tf.Variable(tf.linspace(-1.0, 1.0, 4096))
        expected = 1 + np.mean(LEFT[:chains] ** (count // chains)) * (sample.numpy() - 1)
        multiply_adds(count, chains)(sample, FACTORS)
        recipe.agrees(f"{count} multiply-adds, chains: {chains}", sample, expected)
    kernels = hlo_work(program_of(multiply_adds(128), [sample, FACTORS], stage="optimized_hlo"))
    recipe.fact("kernels: 128 multiply-adds", len(kernels))
    square, total, ones = tf.random.normal([SIDE, SIDE]), tf.Variable(tf.zeros([size])), tf.ones([size])
    ways = {f"{count} multiply-adds": work(count, size) for count in counts}
    ways["one chain"] = work(128, size, chains=1)
    ways["product"] = lambda: tf.matmul(square, square)
    ways["sum in place"] = lambda: total.assign_add(ones, read_value=False)
    comparison = recipe.compare(ways, tolerance=None, what="roofs and multiply-adds")
    crossing = {FLOPS[count]: comparison[f"{count} multiply-adds"].median for count in counts}
    (few, flat), *_, (many, long) = crossing.items()
    peak = 2 * SIDE**3 / comparison["product"].median
    bandwidth = max(8 * size / flat, 12 * size / comparison["sum in place"].median)  # the better of two
    meet, bend = 8 * peak / bandwidth, many * flat / long  # each number is 4 bytes, read and written
    recipe.fact("FLOPs with each number where the roofs meet", meet)
    recipe.fact("FLOPs with each number where time bends", bend)
    recipe.finds(
        f"Up to about {bend:.0f} operations on each number the kernel waits mostly for memory, and its time grows "
        f"slowly: {few} take {format_seconds(flat)}. Beyond, it grows with them: {many} take {format_seconds(long)}."
    )
    recipe.finds(
        f"The roofs, {bandwidth / 1e9:.0f} GB/s and {peak / 1e9:.0f} GFLOP/s in a matrix product, meet at {meet:.0f} "
        f"operations on each number; the kernel's own arithmetic reaches {1e-9 * many * size / long:.0f} GFLOP/s."
    )
    recipe.finds(
        f"Latency is a fourth cause: 128 multiply-adds in one chain, where each step waits for the one before, take "
        f"{comparison.ratio('one chain', '128 multiply-adds').estimate:.1f} times as long as in {CHAINS} chains."
    )
    return crossing, peak, bandwidth


def judge(recipe: Recipe, roofs, name: str, count: int, size: int, calls: int = 1, chains: int = CHAINS) -> None:
    """Say what work is bound by, and put that to the test by changing one thing at a time."""
    changes = {
        "half the arithmetic": (work(count // 2, size, calls, chains), {"compute": 0.5}),
        "twice the bytes": (work(count // 2, 2 * size, calls, chains), {"bandwidth": 2.0}),
        "twice the calls": (work(count, size // 2, 2 * calls, chains), {"overhead": 2.0}),
    }
    ways = {name: work(count, size, calls, chains), "tiny inputs": work(count, 1, calls, chains)}
    ways |= {change: changed for change, (changed, _) in changes.items()}
    comparison = recipe.compare(ways, tolerance=None, what=name)
    seconds, tiny, *_ = (measurement.median for measurement in comparison.measurements)
    (peak, bandwidth), flops, moved = roofs, calls * size * FLOPS[count], calls * size * 8
    bound = bound_by(seconds, tiny, flops, moved, peak, bandwidth)
    recipe.fact(f"bound: {name}", bound)
    recipe.finds(
        f"{name}: {bound}. It takes {format_seconds(seconds)}, and {format_seconds(tiny)} on tiny inputs. At the roofs "
        f"its arithmetic would take {format_seconds(flops / peak)}, its bytes {format_seconds(moved / bandwidth)}."
    )
    for change, (_, effect) in changes.items():
        ratio = 1 / comparison.ratio(name, change).estimate
        verdict = "the verdict holds" if confirms(bound, effect, ratio) else "the verdict fails"
        recipe.fact(f"times as long with {change}: {name}", ratio)
        recipe.finds(f"{name}, {change}: {ratio:.2f} times as long, {effect.get(bound, 1.0):g} predicted; {verdict}.")


def draw(figure, crossing: dict, arithmetic: float, traffic: float) -> None:
    """Draw time against arithmetic, beside the seconds of one operation and of the bytes at their roofs."""
    axes, flops = figure.subplots(), np.array(list(crossing))
    axes.loglog(flops, list(crossing.values()), "ko-", label="measured")
    axes.loglog(flops, flops * arithmetic, "--", label="the arithmetic at its roof")
    axes.axhline(traffic, ls="--", color="tab:orange", label="the bytes at theirs")
    axes.set(xlabel="operations on each number", ylabel="seconds", title="Ever more arithmetic on the same bytes")
    axes.legend()


if __name__ == "__main__":
    Recipe(__file__, batch=1, megabytes=Flag(64, "megabytes of numbers")).run(main)
