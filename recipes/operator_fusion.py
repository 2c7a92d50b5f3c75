"""What does one kernel for many operations buy?

Command: python recipes/operator_fusion.py, or tfperf run operator_fusion
Needs: TensorFlow; no GPU, no data; 512 MiB of memory.
Time: about 30 s on 2 cores; with --quick about 10 s.
Source: operations that only wait for memory become faster when one kernel does them all, as each number is then
    read and written once, and not once for each operation. It names no figure.
Expect: chains of 1 to 8 pointwise operations on 64 MB, eager, as a graph, and compiled by XLA, with equal
    answers; how many kernels run and how many bytes they move; and time that grows with the length of the
    chain where nothing is fused, and hardly where all is.
"""

import tensorflow as tf

from tfperf import Recipe, check_agreement, compare
from tfperf.hardware.counting import Work, graph_work, hlo_work, program_of

MEGABYTES = 64  # far more than the caches hold
LENGTHS = (1, 2, 4, 8)
WAYS = ("eager", "graph", "XLA")
TOLERANCE = 1e-6  # relative; XLA may contract a product and a sum
OPERATIONS = (  # of which no two in a row can be made one by algebra
    lambda x: x * 0.9,
    lambda x: tf.maximum(x, -2.0),
    lambda x: x + 0.05,
    lambda x: tf.minimum(x, 2.0),
)


def chain(length: int):
    """A function of so many pointwise operations."""

    def run(x):  # (numbers,)
        for step in range(length):
            x = OPERATIONS[step % len(OPERATIONS)](x)
        return x

    return run


def main(recipe: Recipe) -> None:
    """Run chains of pointwise operations in three ways."""
    tf.get_logger().setLevel("ERROR")  # each chain is traced for two sizes, which TensorFlow takes for retracing
    x = tf.random.normal([MEGABYTES * 10**6 // 4], seed=recipe.flags.seed)  # (numbers,)
    candidates, moved = {}, {}  # name -> function; name -> what its kernels move
    recipe.console.print("\nAre the answers the same, and what runs?")
    for length in LENGTHS:
        eager = chain(length)
        graph, compiled = tf.function(eager), tf.function(eager, jit_compile=True)
        works = {
            "graph": graph_work(graph.get_concrete_function(x)),
            "XLA": hlo_work(program_of(eager, [x], stage="optimized_hlo")),  # what XLA made of it
        }
        works["eager"] = works["graph"]  # one kernel for each operation in both
        for way, function in zip(WAYS, (eager, graph, compiled), strict=True):
            name = words(way, length)
            recipe.add(check_agreement(name, function(x[:4096]), eager(x[:4096]), TOLERANCE))
            candidates[name], moved[name] = function, Work.sum(name, works[way])
            recipe.fact(f"kernels: {name}", moved[name].operations)
            recipe.fact(f"bytes moved: {name}", moved[name].bytes)

    with recipe.progress("all chains, side by side") as show:
        comparison = compare(
            candidates, args=(x,), time_limit=recipe.flags.time_limit, seed=recipe.flags.seed, on_progress=show
        )
    recipe.add(comparison)

    longest, eager, fused = LENGTHS[-1], words("eager", LENGTHS[-1]), words("XLA", LENGTHS[-1])
    ratio = comparison.ratio(eager, fused)
    share = moved[eager].bytes / moved[fused].bytes
    recipe.means(
        f"XLA makes {moved[fused].operations} kernel of {longest} operations, which moves "
        f"{moved[fused].bytes / 1e6:.0f} MB in place of {moved[eager].bytes / 1e6:.0f} ({share:.1f} times fewer), "
        f"and is {ratio.estimate:.1f} times as fast as eager [{ratio.low:.1f}, {ratio.high:.1f}]."
    )
    for way in WAYS:
        short, long = (comparison[words(way, length)].median for length in (LENGTHS[0], longest))
        each = (long - short) / (longest - LENGTHS[0])
        recipe.fact(f"seconds for each further operation: {way}", each)
    graph_ratio = comparison.ratio(eager, words("graph", longest))
    recipe.means(
        f"The graph has {moved[words('graph', longest)].operations} kernels, as eager has, and fuses none: "
        f"{graph_ratio.verdict}, {graph_ratio.estimate:.2f} times the speed of eager. What it can save is new "
        "memory, as each operation may write where it has read; each still reads and writes every number."
    )
    recipe.plot(lambda figure: draw(figure, comparison, moved))


def words(way: str, length: int) -> str:
    """How a candidate is called."""
    return f"{way}, {length} operation{'s' * (length > 1)}"


def draw(figure, comparison, moved: dict) -> None:
    """Draw time against the length of the chain, and against the bytes that are moved."""
    left, right = figure.subplots(1, 2)
    for way in WAYS:
        medians = [comparison[words(way, length)].median * 1e3 for length in LENGTHS]
        left.plot(LENGTHS, medians, "o-", label=way)
        right.plot([moved[words(way, length)].bytes / 1e6 for length in LENGTHS], medians, "o", label=way)
    left.set_xlabel("operations in the chain")
    right.set_xlabel("MB moved")
    for axes, title in ((left, "Time of a chain"), (right, "The same, against its traffic")):
        axes.set_ylabel("ms")
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.set_title(title, loc="left")
        axes.legend()


if __name__ == "__main__":
    Recipe(__file__, batch=1).run(main)
