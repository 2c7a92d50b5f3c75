"""Which shapes and types feed the matrix units?

Source: 000, GPU和其他加速卡
Claim: matrix units multiply small blocks of short numbers at once, 4x4 or 16x16, so sizes should be multiples of the
    block. Another text (004, 2.3) gives a GPU 8 tensor cores of over 1 TFLOPS each, and calls large sizes less
    efficient.
Expect: the units of this machine, and how many times float32's rate each promises; the rates of square products by
    type and size, with the outputs checked, against that promise; types that no unit or no kernel serves; and sizes
    one below and one above a multiple of 16.
Holds not: where a kernel pads to its blocks anyway, an odd size costs little.
Needs: TensorFlow; no GPU, no data.
Time: about 1 minute on 2 cores; with --quick about 25 s.
Shows: Way
Try: --seed 1: other matrices; no rate should change by more than the noise.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfperf import Recipe, compare
from tfperf.measure import Environment, Verdict, measure
from tfperf.report.tables import bare_table

ALIGNED = 512  # size of the square matrices, a multiple of every unit's block; on a GPU 16 times as much
CPU_UNITS = {  # type -> (as /proc/cpuinfo has it, name, multiply-adds a cycle by those of float32's widest unit)
    "float32": (("avx512f", "AVX-512", 1), ("avx2", "AVX2", 1)),
    "bfloat16": (("amx_bf16", "AMX", 16), ("avx512_bf16", "AVX-512 BF16", 2)),
    "float16": (("amx_fp16", "AMX", 16), ("avx512_fp16", "AVX-512 FP16", 2)),
    "int8": (("amx_int8", "AMX", 32), ("avx512_vnni", "AVX-512 VNNI", 4), ("avx_vnni", "AVX-VNNI", 4)),
}
TENSOR_CORES = {"float16": "7.0", "int8": "7.5", "bfloat16": "8.0", "TF32": "8.0"}  # from which compute capability on
FED = 0.7  # share of its promise from which on a unit counts as fed
PADDING = 0.05  # by so much dearer than aligned, a size counts as one to avoid


class Way(NamedTuple):
    """One way to multiply matrices."""

    dtype: tf.DType
    tolerance: float  # relative, against float64
    multiply: Callable = tf.matmul  # two of (n, n) -> (n, n)
    compiled: bool = False  # by XLA
    rounded: bool = False  # float32 to the 19 bits of TF32, which only some GPUs can


def main(recipe: Recipe) -> None:
    """Multiply square matrices of several types and sizes."""
    gpus = tf.config.list_physical_devices("GPU")
    aligned, ways = ALIGNED * (16 if gpus else 1), ways_here(bool(gpus))
    units = {name: unit_for(name.split(",")[0], gpus) for name in ways}

    for name, way in ways.items():
        for n in (ALIGNED, ALIGNED + 1):
            exact = np.matmul(*(np.asarray(tf.cast(matrix, tf.float64)) for matrix in operands(way, n)))
            recipe.agrees(f"{name}, n = {n}", product(way, n)(), exact, way.tolerance)

    near = (aligned - 1, aligned, aligned + 1)
    candidates = {f"{name}, n = {n}": product(way, n) for name, way in ways.items() for n in near}
    limit = recipe.flags.time_limit
    with recipe.progress("all types, aligned and not") as show:
        found = compare(candidates, time_limit=limit, seed=recipe.flags.seed, on_progress=show)
    recipe.add(found)
    rates = {name: {n: 2 * n**3 / found[f"{name}, n = {n}"].median for n in near} for name in ways}
    for name, way in ways.items():
        for n in (aligned // 4, aligned // 2, 2 * aligned):
            rates[name][n] = 2 * n**3 / measure(product(way, n), time_limit=limit / 20, min_samples=5).median
    show_rates(recipe, rates, units)

    for name in sorted(ways, key=lambda name: -max(rates[name].values())):
        if name != "float32":
            tell_type(recipe, name, *units[name], found.ratio(f"float32, n = {aligned}", f"{name}, n = {aligned}"))
    small, large = ([rate[n] / max(rate.values()) for rate in rates.values()] for n in (aligned // 4, 2 * aligned))
    opening = "Large sizes are not the less efficient ones: of" if max(small) < min(large) else "Of"
    recipe.finds(
        f"{opening} the best rate that each way has, n = {aligned // 4} gives {min(small):.0%} to {max(small):.0%}, "
        f"n = {2 * aligned} {min(large):.0%} to {max(large):.0%}."
    )
    costs = tell_alignment(recipe, found, ways, near)
    recipe.plot(lambda figure: draw(figure, rates, costs, near))


def ways_here(gpu: bool) -> dict[str, Way]:
    """The ways to multiply that are worth a look on this machine."""

    def to_int32(a, b):
        return tf.matmul(a, b, output_type=tf.int32)

    ways = {
        "float32": Way(tf.float32, 1e-5),
        "bfloat16": Way(tf.bfloat16, 1e-2),
        "float16": Way(tf.float16, 2e-3),
        "int8, by XLA": Way(tf.int8, 0.0, to_int32, compiled=True),
    }
    more = {"TF32": Way(tf.float32, 2e-3, rounded=True)} if gpu else {"int8, tf.matmul": Way(tf.int8, 0.0, to_int32)}
    return ways | more


def unit_for(dtype: str, gpus: list) -> tuple[str, float]:
    """The unit that multiplies this type, "" for none; and how many times float32's rate it promises, 0 if unknown."""
    if gpus:
        has = tf.config.experimental.get_device_details(gpus[0])["compute_capability"]
        needed = TENSOR_CORES.get(dtype)
        return ("tensor cores" if needed and has >= tuple(map(int, needed.split("."))) else "", 0)
    features = Environment.here().cpu_features
    return next(((name, times) for feature, name, times in CPU_UNITS[dtype] if feature in features), ("", 0))


def operands(way: Way, n: int) -> list[tf.Tensor]:
    """Two matrices, (n, n), of normal numbers or of all that int8 holds."""
    generator = np.random.default_rng(n)
    if way.dtype == tf.int8:
        return [tf.constant(generator.integers(-127, 128, (n, n)), tf.int8) for _ in range(2)]
    return [tf.cast(generator.standard_normal((n, n), np.float32), way.dtype) for _ in range(2)]


def product(way: Way, n: int) -> Callable:
    """A function without arguments that multiplies two matrices."""
    a, b = operands(way, n)
    function = tf.function(way.multiply, jit_compile=way.compiled).get_concrete_function(a, b)

    def run():
        tf.config.experimental.enable_tensor_float_32_execution(way.rounded)
        return function(a, b)

    return run


def show_rates(recipe: Recipe, rates: dict, units: dict) -> None:
    """Print and write down each way's rates, and the share of its unit's promise that the best of them is."""
    sizes, peak = sorted(rates["float32"]), max(rates["float32"].values())
    table = bare_table("GFLOP/s", "unit", *(f"n = {n}" for n in sizes), "best / promise")
    for name, rate in rates.items():
        unit, times = units[name]
        share = max(rate.values()) / (times * peak) if times else None
        table.add_row(name, unit or "none", *(f"{rate[n] / 1e9:.0f}" for n in sizes), f"{share:.0%}" if share else "")
        recipe.fact(f"unit: {name}", unit or "none")
        for n in sizes:
            recipe.fact(f"operations a second: {name}, n = {n}", rate[n])
        if share:
            recipe.fact(f"best rate as a share of what the unit promises: {name}", share)
    recipe.console.print(table)


def tell_type(recipe: Recipe, name: str, unit: str, times: float, ratio) -> None:
    """Say how a type stands beside float32, and why."""
    speed = f"{name}: {ratio.estimate:.2f} times float32's rate [{ratio.low:.2f}, {ratio.high:.2f}]"
    promise = f"{unit} promises {times:g} times" if times else f"there are {unit} for it"
    if not unit:
        why = "no unit here computes in it, so numbers are converted to float32 and back"
    elif ratio.verdict in (Verdict.TOO_NOISY, Verdict.TOO_FEW):
        why = f"{promise}, and the measurement does not tell whether it is fed"
    elif ratio.verdict is not Verdict.FASTER:
        why = f"{promise}, and this kernel cannot be using it"
    else:
        fed = ratio.estimate >= FED * times
        why = f"{promise}, {'and is fed' if fed else 'and waits, for numbers or for a kernel made for it'}"
    recipe.finds(f"{speed}: {why}.")


def tell_alignment(recipe: Recipe, found, ways: dict, near: tuple) -> dict:
    """Say what odd sizes cost; way -> by which share a multiply-add is dearer one below and one above the aligned."""
    below, aligned, above = near
    costs, words, dear, highest = {}, [], [], 0.0
    for name in ways:
        costs[name] = []
        for n in (below, above):
            faster = found.ratio(f"{name}, n = {aligned}", f"{name}, n = {n}").interval
            cost, most, least = ((aligned / n) ** 3 / ratio - 1 for ratio in faster)
            recipe.fact(f"a multiply-add is dearer by: {name}, n = {n}", cost)
            costs[name].append(cost)
            dear += [name] if least > 0 and cost > PADDING else []
            highest = max(highest, most)
        words.append(f"{name} {costs[name][0]:+.0%} and {costs[name][1]:+.0%}")
    if dear:
        so = f"align the sizes of what multiplies in {' or '.join(dict.fromkeys(dear))}"
    elif highest > 2 * PADDING:
        so = "it is too noisy to say more"
    else:
        so = "that is little: a kernel pads to its blocks as it copies the operands, once for all products of a number"
    recipe.finds(f"A multiply-add at n = {below} and {above}, against {aligned}: {', '.join(words)}; {so}.")
    return costs


def draw(figure, rates: dict, costs: dict, near: tuple) -> None:
    """Draw the rates by size, and what odd sizes cost."""
    left, right = figure.subplots(1, 2, width_ratios=[3, 2])
    for name, rate in rates.items():
        sizes = sorted(n for n in rate if n not in (near[0], near[-1]))
        left.plot(sizes, [rate[n] / 1e9 for n in sizes], "o-", label=name)
    left.set_xscale("log", base=2)
    left.set_xticks(sizes, sizes)
    left.set_ylim(bottom=0)
    left.set_xlabel("n, of a product of n x n matrices")
    left.set_ylabel("GFLOP/s")
    left.set_title("Rate by type and size", loc="left")
    left.legend()
    for which, marker, n in ((0, "<", near[0]), (1, ">", near[-1])):
        right.plot([cost[which] * 100 for cost in costs.values()], list(costs), marker, label=f"n = {n}")
    right.axvline(0, color="gray")
    right.invert_yaxis()
    right.margins(0.15)
    right.set_xlabel(f"% dearer than at n = {near[1]}")
    right.set_title("A multiply-add at an odd size", loc="left")
    right.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2)


if __name__ == "__main__":
    Recipe(__file__, batch=1).run(main)
