"""What does one kernel for many operations buy?

Source: 003, 算子融合
Claim: operations that only wait for memory become faster when one kernel does them all, as each number is then read and
    written once, and not once for each operation. The source names no figure.
Expect: chains of 1 to 8 pointwise operations on 64 MB, eager, as a graph and compiled by XLA, with equal outputs: how
    many kernels run, what they move, and how the time grows with the chain. Then the kernels of a whole net.
Holds not: for large matrix products and convolutions, which wait for arithmetic; XLA on a CPU often loses more on those
    than fusing wins.
Needs: TensorFlow; no GPU, no data; 512 MiB of memory.
Time: about 35 s on 2 cores; with --quick about 15 s.
Shows: chain, fused, kernels_of
Try:
    - --megabytes 1: the numbers stay in the caches, so fusing saves less.
    - --model resnet18: TensorFlow fuses most of its convolutions already, so XLA has less to win.
"""

import re
from collections import Counter

import tensorflow as tf

from tfperf import Flag, Recipe
from tfperf.hardware import Traced, Work, graph_work, hlo_work, program_of
from tfperf.report import interval_plot


def chain(length):
    """Chain pointwise operations: as kernels of their own, each of them reads and writes every number."""

    def run(x):
        for step in range(length):
            x = tf.maximum(x, -2.0) if step % 2 else x * 0.9
        return x

    return run


def fused(function):
    """Have XLA make one kernel of operations that follow each other."""
    return tf.function(function, jit_compile=True)


def kernels_of(function, *args):
    """List the kernels that XLA made of a function, so that you see what was fused."""
    program = fused(function).experimental_get_compiler_ir(*args)(stage="optimized_hlo")
    kinds = re.findall(r" = .*? ([a-z][\w-]*)\(", program[program.index("ENTRY") :])
    return [kind for kind in kinds if kind not in ("parameter", "constant", "tuple", "get-tuple-element", "bitcast")]


LENGTHS = (1, 2, 4, 8)
BOOKKEEPING = ("_Arg", "Const", "Identity", "ReadVariableOp", "VarHandleOp")  # kernels that compute and move nothing
WAYS = {"eager": lambda function: function, "graph": tf.function, "XLA": fused}


def main(recipe: Recipe) -> None:
    """Fuse chains of pointwise operations, then look at what is fused in a net."""
    opened = recipe.open_model()
    if not opened.is_yours:
        fuse_chains(recipe)
    fuse_net(recipe, opened)


def fuse_chains(recipe: Recipe) -> None:
    """Run chains of each length in each way, and count what they move."""
    x = tf.random.normal([recipe.flags.megabytes * 10**6 // 4], seed=recipe.flags.seed)  # (numbers,)
    candidates, moved = {}, {}
    for length in LENGTHS:
        for way, make in WAYS.items():
            name = f"{way}, {length} operation{'s' * (length > 1)}"
            candidates[name], moved[name] = make(chain(length)), work_of(way, chain(length), x)
            recipe.agrees(name, candidates[name](x[:4096]), chain(length)(x[:4096]), 1e-6)
            recipe.fact(f"kernels: {name}", moved[name].operations)
            recipe.fact(f"bytes moved: {name}", moved[name].bytes)
    comparison = recipe.compare(candidates, x, tolerance=None, what="all chains")

    eager, graph, xla = (f"{way}, {LENGTHS[-1]} operations" for way in WAYS)
    ratio = comparison.ratio(eager, xla)
    recipe.finds(
        f"XLA makes {moved[xla].operations} kernel of {LENGTHS[-1]} operations. It moves {moved[xla].bytes / 1e6:.0f} "
        f"MB instead of {moved[eager].bytes / 1e6:.0f}, and is {ratio.estimate:.1f} times as fast as eager "
        f"[{ratio.low:.1f}, {ratio.high:.1f}]."
    )
    ratio = comparison.ratio(eager, graph)
    recipe.finds(
        f"The graph runs {moved[graph].operations} kernels as eager does, and fuses none: {ratio.verdict}, "
        f"{ratio.estimate:.2f} times the speed of eager. An operation of a graph may write where it has read, which "
        "saves memory, but each still reads and writes every number."
    )
    recipe.plot(draw, comparison, moved)


def work_of(way: str, function, x) -> Work:
    """What the kernels of a way read and write; eager and graph have one kernel for each operation."""
    if way == "XLA":
        return Work.sum(way, hlo_work(program_of(function, [x], stage="optimized_hlo")))
    return Work.sum(way, graph_work(tf.function(function).get_concrete_function(x)))


def fuse_net(recipe: Recipe, opened) -> None:
    """Name the kernels that TensorFlow and XLA fuse in a net, and compare their times."""
    net, args = opened.net, opened.args
    comparison = recipe.compare(
        {way: make(net) for way, make in WAYS.items()}, *args, what=f"ways to run {opened.name}"
    )
    forward = tf.function(lambda *arrays: net(*opened.servable.pack(arrays), training=False))
    traced = forward.get_concrete_function(*map(tf.constant, opened.arrays))
    with Traced(traced, opened.arrays) as session:
        ran = Counter(one.kernel for one in session.operations(runs=1) if one.kernel not in BOOKKEEPING)
    fused_here = {kernel: count for kernel, count in ran.items() if "Fused" in kernel}
    compiled = Counter(kernels_of(net, *args))
    words = ", ".join(f"{count} {kernel.lstrip('_')}" for kernel, count in fused_here.items()) or "none of them fused"
    recipe.fact("operations of the net's trace", len(graph_work(traced)))
    recipe.fact("kernels TensorFlow runs", ran.total())
    recipe.fact("fused kernels of TensorFlow", sum(fused_here.values()))
    recipe.fact("kernels of XLA", compiled.total())
    recipe.finds(
        f"{opened.words} has {len(graph_work(traced))} operations. As a graph TensorFlow runs {ran.total()} kernels: "
        f"{words}. XLA makes {compiled.total()} kernels, {compiled['fusion']} of them fusions."
    )
    ratio = comparison.ratio("graph", "XLA")
    recipe.finds(
        f"XLA against the graph: {ratio.verdict}, {ratio.estimate:.2f} times its speed "
        f"[{ratio.low:.2f}, {ratio.high:.2f}]. Fewer kernels help only if each of them is as good."
    )
    if opened.is_yours:
        recipe.plot(lambda figure: interval_plot(figure.subplots(), comparison, f"One call of {opened.words}"))


def draw(figure, comparison, moved: dict) -> None:
    """Draw time against the length of the chain, and against the bytes that are moved."""
    left, right = figure.subplots(1, 2)
    for way in WAYS:
        names = [name for name in moved if name.startswith(way)]
        medians = [comparison[name].median * 1e3 for name in names]
        left.plot(LENGTHS, medians, "o-", label=way)
        right.plot([moved[name].bytes / 1e6 for name in names], medians, "o", label=way)
    left.set(xlabel="operations in the chain", title="Time of a chain")
    right.set(xlabel="MB moved", title="The same, against its traffic")
    for axes in (left, right):
        axes.set(ylabel="ms", xlim=(0, None), ylim=(0, None))
        axes.legend()


if __name__ == "__main__":
    Recipe(__file__, batch=1, model="mnist_cnn", megabytes=Flag(64, "megabytes of numbers in a chain")).run(main)
