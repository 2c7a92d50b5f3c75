"""Which shapes and types feed the matrix units?

Source: 000, GPU和其他加速卡
Claim: matrix units multiply small blocks of short numbers at once, 4x4 to 16x16, so sizes should be multiples of the
    block. 004, 2.3 and 3.3.2.3.1, gives a GPU 8 tensor cores of over 1 TFLOPS each, less efficient for large sizes.
Expect: the units here and what they promise; rates by type and size; what odd sizes cost, as they are and padded.
Holds not: where a kernel pads to its blocks by itself; then an odd size costs little.
Needs: TensorFlow; no GPU, no data.
Time: about 1 minute on 2 cores; with --quick about 25 s.
Shows: product_in, allow_tf32, padded, operations_per_second
Try: ONEDNN_MAX_CPU_ISA=AVX512_CORE in the environment: oneDNN leaves AVX-512 BF16 and AMX idle; bfloat16 gets slow.
"""

import numpy as np
import tensorflow as tf

from tfperf import Recipe, Verdict
from tfperf.hardware import matrix_unit
from tfperf.measure import measure


def product_in(dtype, compiled=False):
    """Multiply in a type that a matrix unit takes: int8 compiled by XLA, as the loop of tf.matmul feeds no unit."""
    sums = tf.int32 if dtype == "int8" else None  # a sum of int8 products needs more than 8 bits

    def multiply(a, b):
        return tf.matmul(tf.cast(a, dtype), tf.cast(b, dtype), output_type=sums)

    return tf.function(multiply, jit_compile=compiled)


def allow_tf32(allowed):
    """Give a GPU's tensor cores float32 factors cut to 19 bits, as TensorFlow does by default, or keep all 32."""
    tf.config.experimental.enable_tensor_float_32_execution(allowed)


def padded(multiply, block=64):
    """Multiply odd sizes as the next multiple of the block: zeros change no sum, and are cut off the product."""

    def run(a, b):
        rows, columns = a.shape[0], b.shape[1]
        a, b = (tf.pad(x, [[0, -size % block] for size in x.shape]) for x in (a, b))  # copies: better choose aligned
        return multiply(a, b)[:rows, :columns]

    return run


def operations_per_second(rows, inner, columns, seconds):
    """Find the rate of (rows, inner) by (inner, columns), as data sheets give it: a multiply-add counts twice."""
    return 2 * rows * inner * columns / seconds


WAYS = {  # name -> the type, whether XLA compiles it, and the largest error as a share of the largest output
    "float32": ("float32", False, 1e-5),
    "TF32": ("float32", False, 2e-3),
    "bfloat16": ("bfloat16", False, 1e-2),
    "float16": ("float16", False, 2e-3),
    "int8, by XLA": ("int8", True, 0.0),
    "int8, tf.matmul": ("int8", False, 0.0),
}
SIZE = 512  # rows of the square matrices, a multiple of every unit's block; on a GPU 16 times as many
SHAPES = {"aligned": (0, False), "1 below": (-1, False), "1 below, padded": (-1, True), "1 above": (1, False)}


def main(recipe: Recipe) -> None:
    """Multiply square matrices of several types and sizes, aligned and not."""
    gpu = bool(tf.config.list_physical_devices("GPU"))
    n, candidates = SIZE * (16 if gpu else 1), {}
    ways = [name for name in WAYS if name != ("int8, tf.matmul" if gpu else "TF32")]
    for name in ways:
        for shape, (step, pad) in SHAPES.items():
            product, a, b = work(name, SIZE + step, pad)
            exact = tf.matmul(tf.cast(a, tf.float64), tf.cast(b, tf.float64))
            recipe.agrees(f"{name}, {shape}", product(), exact, WAYS[name][2])
            candidates[f"{name}, {shape}"], *_ = work(name, n + step, pad)
    comparison = recipe.compare(candidates, tolerance=None, what="all types, aligned and not")
    rates = {name: rates_of(recipe, name, comparison, n) for name in ways}
    rows = [(name, *(f"{value / 1e9:.0f}" for value in rate.values())) for name, rate in rates.items()]
    recipe.table(("GFLOP/s", *(f"n = {size}" for size in rates["float32"])), rows)
    for name in ways:
        unit = matrix_unit(name.split(",")[0])
        recipe.fact(f"unit: {name}", unit.name if unit else "none")
        limit = f"{unit.name} would allow {unit.times_float32 or 'more'}" if unit else "no unit here multiplies it"
        if name != "float32":
            ratio = comparison.ratio("float32, aligned", f"{name}, aligned")
            recipe.finds(f"{name}: {ratio.verdict}, {ratio.estimate:.2f} times the rate of float32; {limit}.")
    tell_costs(recipe, ways, comparison, n)
    small, large = (np.median([rate[size] / max(rate.values()) for rate in rates.values()]) for size in (n // 4, 2 * n))
    recipe.corrects(
        f"large sizes are not less efficient, but more. The median type has {small:.0%} of its best rate at "
        f"n = {n // 4}, and {large:.0%} at n = {2 * n}."
    )
    recipe.corrects(
        "a tensor core is no set of operators, but a circuit that multiplies small blocks. A T4 has 320 of 0.2 TFLOP/s "
        "each, an A100 432 of 0.7, an H100 528 of 1.9; a P4 and a P40 have none. On a T4 float32 uses none of them."
    )
    recipe.plot(draw, rates)


def work(name: str, n: int, pad: bool = False):
    """Make a product of two matrices, (n, n), in one of the ways; gives the product's function and both matrices."""
    dtype, compiled, _ = WAYS[name]
    numbers = np.random.default_rng(n).standard_normal((2, n, n), np.float32)
    a, b = tf.saturate_cast(numbers * 50 if dtype == "int8" else numbers, dtype)  # int8 ends at its limits
    multiply = product_in(dtype, compiled)
    function = tf.function(padded(multiply), jit_compile=compiled) if pad else multiply

    def product():
        allow_tf32(name == "TF32")
        return function(a, b)

    return product, a, b


def rates_of(recipe: Recipe, name: str, comparison, n: int) -> dict:
    """Find the rate of one way at each size, and write it down; size -> operations a second."""
    seconds = {n + step: comparison[f"{name}, {shape}"].median for shape, (step, pad) in SHAPES.items() if not pad}
    for size in (n // 4, n // 2, 2 * n):
        seconds[size] = measure(work(name, size)[0], time_limit=recipe.flags.time_limit / 20, min_samples=5).median
    rates = {size: operations_per_second(size, size, size, seconds[size]) for size in sorted(seconds)}
    for size, rate in rates.items():
        recipe.fact(f"operations a second: {name}, n = {size}", rate)
    return rates


def tell_costs(recipe: Recipe, ways: list, comparison, n: int) -> None:
    """Say by which share a multiply-add of odd matrices takes longer than one of aligned matrices."""
    for shape, (step, _) in list(SHAPES.items())[1:]:
        words = []
        for name in ways:
            cost = (n / (n + step)) ** 3 / comparison.ratio(f"{name}, aligned", f"{name}, {shape}").estimate - 1
            recipe.fact(f"a multiply-add takes longer by: {name}, {shape}", cost)
            words.append(f"{name} {cost:+.0%}")
        recipe.finds(f"{shape} (n = {n + step}): a multiply-add takes longer than aligned by {', '.join(words)}.")
    ratios = {name: comparison.ratio(f"{name}, 1 below", f"{name}, 1 below, padded") for name in ways}
    pays = [name for name, ratio in ratios.items() if ratio.verdict is Verdict.FASTER]
    recipe.finds(f"Padding at each call pays for {', '.join(pays) or 'none of them'}.")


def draw(figure, rates: dict) -> None:
    """Draw the rate of each way by size."""
    axes = figure.subplots()
    for name, rate in rates.items():
        axes.semilogx(list(rate), [value / 1e9 for value in rate.values()], "o-", base=2, label=name)
    axes.set(ylim=(0, None), xlabel="n, of n x n matrices", ylabel="GFLOP/s", title="Rate by type and size")
    axes.legend()


if __name__ == "__main__":
    Recipe(__file__, batch=1).run(main)
