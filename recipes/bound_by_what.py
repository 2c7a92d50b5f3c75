"""Compute, bandwidth or overhead?

Source: 003, 深度学习性能瓶颈往往是内存带宽
Claim: a model's time is compute, bandwidth or overhead, which is everything else; as bandwidth grows more slowly from
    year to year, it is mostly that. The source names no figure.
Expect: one kernel that does ever more arithmetic with each number of 64 MB: its time stays, and then grows, from
    about where the measured roofs meet. Then work of known kinds, with a verdict for each that is put to the test:
    arithmetic, bytes or calls are changed alone, and the time moves as the verdict says, or it is said that not.
Holds not: of large products and convolutions, which are bound by arithmetic; and waiting for the result before is a
    fourth cause.
Needs: TensorFlow; no GPU, no data; 2 GiB of memory.
Time: about 90 s on 2 cores; with --quick about 30 s.
Shows: multiply_adds, in_place
Try: --quick: fewer points, and the bend is found less exactly.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfperf import Recipe, compare, get_net
from tfperf.explaining.intervening import judged
from tfperf.hardware.counting import Work, graph_work, hlo_work, program_of
from tfperf.hardware.kernels.roofline import Bound, Cost, Spent
from tfperf.measure import Environment
from tfperf.measure.words import format_seconds

NUMBERS = 16_000_000  # 64 MB: far more than the caches hold
COUNTS = tuple(2**power for power in range(9))  # of multiply-adds with each number
CHAINS, ALONE = 8, 64  # of them side by side, so that none waits for another; and so many in one chain, where all wait
SIDE = 2048  # of the matrices whose product shows how fast this machine can multiply
TINY, FEW = 200, 16  # operations, on so many numbers each
TOLERANCE = 1e-5  # relative
COMPUTE, BANDWIDTH, OVERHEAD = Bound
COLOURS = {COMPUTE: "tab:green", BANDWIDTH: "tab:blue", OVERHEAD: "tab:orange"}


class Case(NamedTuple):
    """Work of a known kind, and the same with something changed."""

    name: str
    known: Bound
    run: Callable
    nothing: Callable  # the same calls with next to nothing to do: what they take is overhead
    flops: int
    bytes: int
    changes: dict[str, tuple[Callable, dict[Bound, float]]]  # words -> what then runs, and what becomes how much


def multiply_adds(count: int, chains: int = CHAINS) -> Callable:
    """A function of numbers (n,) and factors (2, CHAINS): the mean of chains of so many multiply-adds in all."""
    chains = min(count, chains)

    def run(x, factors):
        ends = [x] * chains
        for step in range(count):
            chain = step % chains
            ends[chain] = ends[chain] * factors[0, chain] + factors[1, chain]
        return ends[0] if chains == 1 else tf.add_n(ends) / chains

    return run


def flops(count: int) -> int:
    """Floating-point operations with each number, the mean included."""
    return 2 * count + (min(count, CHAINS) if count > 1 else 0)


def in_place(count: int, *tensors: tf.Variable | tf.Tensor, chains: int = CHAINS) -> Callable:
    """The same as one kernel that changes a variable: each number is read and written once."""
    run = multiply_adds(count, chains)

    @tf.function(jit_compile=True)
    def change(numbers, factors):
        numbers.assign(run(numbers, factors))

    return partial(change, *tensors)


def main(recipe: Recipe) -> None:
    """Measure the roofs and what runs into them, then judge work of known kinds and test the verdicts."""
    tf.get_logger().setLevel("ERROR")  # each kernel is traced once, which TensorFlow takes for one that retraces
    tf.keras.utils.set_random_seed(recipe.flags.seed)
    left = 1 - 2.0**-8 * np.arange(1, CHAINS + 1)  # of the distance to 1, after a multiply-add; exact in float32
    factors = tf.constant([left, 1 - left], tf.float32)  # tensors: numbers that XLA knows it would fold
    numbers = tf.Variable(tf.random.normal([NUMBERS]))
    counts = COUNTS[::2] if recipe.flags.quick else COUNTS
    for count, chains in [*((count, min(count, CHAINS)) for count in counts), (ALONE, 1)]:
        some = tf.Variable(numbers[:4096])
        known = 1 + np.mean(left[:chains] ** (count // chains)) * (some.numpy().astype(float) - 1)
        in_place(count, some, factors, chains=chains)()
        recipe.agrees(f"{count} multiply-adds, chains: {chains}", some, known, TOLERANCE)
    program = program_of(multiply_adds(COUNTS[-1]), [some.value(), factors], stage="optimized_hlo")
    recipe.fact(f"kernels: {COUNTS[-1]} multiply-adds", Work.sum("all", hlo_work(program)).operations)

    crossing, peak, bandwidth = cross(recipe, counts, numbers, factors)
    spent = {case.name: judge(recipe, case, peak, bandwidth) for case in cases(recipe, numbers, factors)}
    recipe.plot(lambda figure: draw(figure, crossing, peak, bandwidth, spent))


def cross(recipe: Recipe, counts, numbers: tf.Variable, factors: tf.Tensor) -> tuple[dict, float, float]:
    """Ever more work with the same numbers, beside the roofs; FLOPs a number -> seconds, FLOP/s, bytes/s."""
    square, total, added = tf.random.normal([SIDE, SIDE]), tf.Variable(tf.zeros([NUMBERS])), tf.ones([NUMBERS])
    recipe.agrees("product", tf.matmul(square, square), np.matmul(square, square), TOLERANCE)
    names = {count: f"{count} multiply-add{'s' * (count > 1)}" for count in counts}
    chain = f"{ALONE} multiply-adds in one chain"
    candidates = {name: in_place(count, numbers, factors) for count, name in names.items()}
    candidates[chain] = in_place(ALONE, numbers, factors, chains=1)
    candidates["product"] = lambda: tf.matmul(square, square)
    candidates["sum in place"] = lambda: total.assign_add(added, read_value=False)  # 12 bytes a number
    comparison = measure(recipe, "roofs and multiply-adds, side by side", candidates)
    found = {flops(count): comparison[name].median for count, name in names.items()}
    peak = 2 * SIDE**3 / comparison["product"].median
    bandwidth = 12 * NUMBERS / comparison["sum in place"].median
    (first, flat), *_, (most, long) = found.items()
    rate, bend = bend_of(found)
    meet = 8 * peak / bandwidth
    recipe.fact("FLOPs with each number where the roofs meet", meet)
    recipe.fact("FLOPs with each number where time bends", bend)
    recipe.finds(
        f"The first {bend:.0f} floating-point operations with each number of 64 MB cost next to nothing: {first} take "
        f"{format_seconds(flat)}, as memory is waited for ({8e-9 * NUMBERS / flat:.0f} GB/s), {most} take "
        f"{format_seconds(long)}, as arithmetic is ({rate / 1e9:.0f} GFLOP/s)."
    )
    halved = "avx512f" in Environment.here().cpu_features
    narrow = "; XLA's vectors have 256 bits unless told otherwise, half of what this CPU has" if halved else ""
    recipe.finds(
        f"The roofs, {bandwidth / 1e9:.0f} GB/s in a sum, {peak / 1e9:.0f} GFLOP/s in a product, meet at {meet:.0f}. "
        f"This kernel reaches {8 * NUMBERS / flat / bandwidth:.0%} and {rate / peak:.0%} of them{narrow}."
    )
    ratio = comparison.ratio(names[ALONE], chain)
    recipe.finds(
        f"What the three leave out: {ALONE} multiply-adds in one chain run at {ratio.estimate:.2f} times the speed of "
        f"{CHAINS} chains side by side, as each waits for the one before."
    )
    return found, peak, bandwidth


def bend_of(found: dict[int, float]) -> tuple[float, float]:
    """FLOP/s where time grows with arithmetic, and the operations with each number from which it does."""
    (_, flat), *_, (less, short), (most, long) = found.items()
    rate = (most - less) * NUMBERS / (long - short)
    return rate, flat * rate / NUMBERS


def measure(recipe: Recipe, what: str, candidates: dict):
    """Compare candidates, and show it."""
    with recipe.progress(what) as show:
        comparison = compare(candidates, time_limit=recipe.flags.time_limit, seed=recipe.flags.seed, on_progress=show)
    recipe.add(comparison)
    return comparison


def tiny(count: int, size: int) -> Callable:
    """So many operations one after the other, each on so many numbers."""
    ones = tf.ones([size])

    def run():
        x = ones
        for _ in range(count):
            x = tf.add(x, ones)
        return x

    return run


def cases(recipe: Recipe, numbers: tf.Variable, factors: tf.Tensor) -> Iterator[Case]:
    """Work whose kind is known, one after the other."""
    square, eight = tf.random.normal([SIDE, SIDE]), tf.random.normal([8, SIDE // 2, SIDE // 2])
    thin, flat, dot = square[:, : SIDE // 2], square[: SIDE // 2], tf.ones([1, 1])
    changes = {
        "half the FLOPs": (lambda: tf.matmul(thin, flat), {COMPUTE: 0.5}),
        "twice the bytes": (lambda: tf.matmul(eight, eight), {BANDWIDTH: 2.0}),
    }
    work = (lambda: tf.matmul(square, square)), (lambda: tf.matmul(dot, dot)), 2 * SIDE**3, 12 * SIDE**2
    yield Case(f"product of {SIDE}^3", COMPUTE, *work, changes)

    one, twice = (tf.Variable(tf.random.normal([size])) for size in (1, 2 * NUMBERS))
    share = flops(1) / flops(2)
    changes = {
        f"{share:.0%} of the FLOPs": (in_place(1, numbers, factors), {COMPUTE: share}),
        "twice the bytes": (in_place(1, twice, factors), {BANDWIDTH: 2.0, COMPUTE: 2 * share}),
    }
    work = in_place(2, numbers, factors), in_place(2, one, factors), flops(2) * NUMBERS, 8 * NUMBERS
    yield Case("2 multiply-adds on 64 MB", BANDWIDTH, *work, changes)

    work = tiny(TINY, FEW), tiny(TINY, 1), TINY * FEW, TINY * FEW * 8
    recipe.agrees("tiny operations", work[0](), np.full(FEW, 1.0 + TINY), 0.0)
    changes = {
        "half the FLOPs and bytes": (tiny(TINY, FEW // 2), {COMPUTE: 0.5, BANDWIDTH: 0.5}),
        "half the calls": (tiny(TINY // 2, 2 * FEW), {OVERHEAD: 0.5}),
    }
    yield Case(f"{TINY} tiny operations", OVERHEAD, *work, changes)

    net, narrow = get_net("mlp", seed=recipe.flags.seed), get_net("mlp", input_shape=(256,), hidden_units=(128, 64))
    empty, pair = get_net("mlp", input_shape=(1,), hidden_units=(1, 1)), tf.random.normal([2, 512])  # (batch, features)
    recipe.agrees("mlp, both at once", net(pair), tf.concat([net(pair[:1]), net(pair[1:])], 0), TOLERANCE)
    counted = Work.sum("mlp", graph_work(tf.function(net).get_concrete_function(pair[:1])))

    def singly(model, x):
        return lambda: (model(x), model(x))

    changes = {
        "a quarter of the FLOPs and bytes": (singly(narrow, pair[:1, :256]), {COMPUTE: 0.25, BANDWIDTH: 0.25}),
        "half the calls": (lambda: net(pair), {OVERHEAD: 0.5}),
    }
    work = singly(net, pair[:1]), singly(empty, dot), 2 * counted.flops, 2 * counted.bytes
    yield Case("mlp of 2 examples, one by one", OVERHEAD, *work, changes)


def judge(recipe: Recipe, case: Case, peak: float, bandwidth: float) -> Spent:
    """Say what its time is spent on, and put that to the test."""
    candidates = {case.name: case.run, "nothing to do": case.nothing}
    comparison = measure(recipe, case.name, candidates | {what: run for what, (run, _) in case.changes.items()})
    seconds, start = comparison[case.name].median, comparison["nothing to do"].median
    compute, traffic = case.flops / peak, case.bytes / bandwidth
    spent = Spent.of([(Cost(start + max(compute, traffic), compute, traffic, start), seconds)])
    tests = [
        judged(what, spent.bound, comparison.ratio(case.name, what), moves.get(spent.bound, 1.0))
        for what, (_, moves) in case.changes.items()
    ]
    recipe.fact(f"bound: {case.name}", spent.bound.value)
    recipe.fact(f"tests that agree: {case.name}", sum(test.agrees for test in tests))
    surprise = "" if spent.bound is case.known else f", where {case.known.value} was to be expected"
    recipe.finds(
        f"{case.name}: {spent.bound.adjective}{surprise}. Of {format_seconds(seconds)}, {format_seconds(start)} stay "
        f"with nothing to do; the arithmetic at its roof takes {format_seconds(compute)}, the bytes at theirs "
        f"{format_seconds(traffic)}. Put to the test: {'; '.join(test.words for test in tests)}."
    )
    return spent


def draw(figure, crossing: dict, peak: float, bandwidth: float, spent: dict) -> None:
    """Draw time against arithmetic with the roofs, and what each case spends its time on."""
    left, right = figure.subplots(1, 2)
    work, meet, bend = np.array(list(crossing)), 8 * peak / bandwidth, bend_of(crossing)[1]
    left.loglog(work, [seconds * 1e3 for seconds in crossing.values()], "ko-", label="measured")
    left.axhline(8e3 * NUMBERS / bandwidth, ls="--", color=COLOURS[BANDWIDTH], label="roof of memory")
    left.loglog(work, work * NUMBERS / peak * 1e3, "--", color=COLOURS[COMPUTE], label="roof of arithmetic")
    left.axvline(meet, ls=":", color="grey", label=f"the roofs meet at {meet:.0f}")
    left.axvline(bend, ls="-.", color="grey", label=f"the time bends at {bend:.0f}")
    left.set_xlabel("floating-point operations with each number")
    left.set_ylabel("ms")
    left.set_title("Ever more arithmetic on 64 MB", loc="left")
    left.legend(fontsize="small", loc="lower right")
    names, before = [name.replace(", ", ",\n") for name in spent], np.zeros(len(spent))
    for bound in Bound:
        shares = [100 * one.share(bound) for one in spent.values()]
        right.barh(names, shares, left=before, color=COLOURS[bound], label=bound)
        before += shares
    right.invert_yaxis()
    right.set_xlabel("% of the time")
    right.set_title("What it is spent on", loc="left")
    right.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=3)


if __name__ == "__main__":
    Recipe(__file__, batch=1).run(main)
