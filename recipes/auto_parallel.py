"""Does the runtime run independent work side by side?

Command: python recipes/auto_parallel.py, or tfperf run auto_parallel
Needs: TensorFlow; no GPU, no data; 2 cores.
Time: about 1 minute on 2 cores; with --quick about 25 s.
Source: a framework sees in the graph which work needs which, and runs the rest side by side: two devices together take
    less than the sum of both alone, and so do computing y[i] and copying y[i-1]. Run each task once before it is
    measured. It names no figure.
Expect: two independent branches alone, in turns and together in one graph, with equal answers, and how many cores they
    keep at work; the same where one operation may take all cores; what measuring without a warm-up would have said;
    and computing with copies beside it.
"""

import multiprocessing
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import tensorflow as tf

from tfperf import Recipe, check_agreement, compare
from tfperf.cores import usable_cores
from tfperf.measure import Verdict

SIZE, PRODUCTS = 512, 8  # of square matrices, one after the other in each branch
SIDE, INNER = 2048, 32  # of the product that is copied: little arithmetic for 16 MiB of answer
ROUNDS = 8  # of computing and copying
PARTS = ("one alone", "the other alone", "in turns", "together")
CROWDED = 0.1  # share of the CPU time that others take, from which on they explain more than the runtime does
DEADLINE = 120  # seconds, beside the time limit, for the process whose operations may use all cores


def main(recipe: Recipe) -> None:
    """Run two branches, and computing and copying, alone and together."""
    flags, cores = recipe.flags, usable_cores()
    tf.config.threading.set_intra_op_parallelism_threads(1)  # one core for one operation, so that the others are free
    one, other, in_turns, together = branches(flags.seed)
    recipe.console.print("Are the answers the same?")
    for name, function in (("branches in turns", in_turns), ("branches together", together)):
        recipe.add(check_agreement(name, function(), [one(), other()], 0.0))

    narrow = side_by_side(recipe, "1 thread each", branches(flags.seed))  # new ones, which are not traced yet
    tell(recipe, narrow)
    at_work = cores_at_work(together), cores_at_work(in_turns)
    recipe.fact("cores at work, branches together", at_work[0])
    recipe.fact("cores at work, branches in turns", at_work[1])
    recipe.means(f"Together the branches keep {at_work[0]:.1f} of {cores} cores at work, in turns {at_work[1]:.1f}.")
    first = [m.first_call_seconds for m in narrow.measurements]
    share, longer = first[3] / (first[0] + first[1]), first[3] / narrow.measurements[3].median
    recipe.fact("together as a share of the sum, first calls", share)
    recipe.means(
        f"Warm up first: the first call of the graph of both takes {first[3] * 1e3:.0f} ms, {longer:.1f} times a later "
        f"one, as it is traced and built then. By first calls alone together would seem {share:.0%} of the sum."
    )

    with recipe.progress("the same in a process where one operation may take all cores"):
        wide = in_fresh_process(all_cores, (cores, flags.seed, flags.time_limit))
    recipe.add(wide)
    tell(recipe, wide)
    alone = wide.measurements[0].median / narrow.measurements[0].median
    recipe.means(
        f"There an operation is itself cut into parts for {cores} cores: one branch alone takes "
        f"{alone:.0%} of what it took with one thread, and what is won inside an operation cannot be won again between "
        "operations."
    )
    with ThreadPoolExecutor(1) as copier:
        copies = side_by_side(recipe, "copies", computing_and_copying(recipe, copier))
    tell(recipe, copies)
    recipe.plot(lambda figure: draw(figure, {"1 thread each": narrow, "all cores each": wide, "copies": copies}))


def branches(seed: int) -> tuple:
    """Two chains of products that do not need each other, in four graphs; on two GPUs where there are two."""
    gpus = [gpu.name for gpu in tf.config.list_logical_devices("GPU")]
    devices = gpus[:2] if len(gpus) > 1 else ["CPU:0", "CPU:0"]
    generator = np.random.default_rng(seed)
    rotation = np.linalg.qr(generator.standard_normal((SIZE, SIZE)))[0]  # leaves lengths as they are
    weights = tf.constant(rotation, tf.float32)
    inputs = [tf.constant(generator.standard_normal((SIZE, SIZE)), tf.float32) for _ in devices]

    def branch(number: int) -> tf.Tensor:  # (SIZE, SIZE)
        with tf.device(devices[number]):
            x = tf.identity(inputs[number])
            for _ in range(PRODUCTS):
                x = tf.matmul(x, weights)
            return x

    def in_turns():
        first = branch(0)
        with tf.control_dependencies([first]):  # the graph now says that one waits for the other
            return [first, branch(1)]

    def together():
        return [branch(0), branch(1)]

    functions = (partial(branch, 0), partial(branch, 1), in_turns, together)
    return tuple(tf.function(function, autograph=False) for function in functions)


def computing_and_copying(recipe: Recipe, copier: ThreadPoolExecutor) -> tuple:
    """The same four for computing an answer and copying the one before, which another thread does."""
    generator = np.random.default_rng(recipe.flags.seed)
    left = tf.constant(generator.standard_normal((SIDE, INNER)), tf.float32)
    right = tf.constant(generator.standard_normal((INNER, SIDE)), tf.float32)
    compute = tf.function(lambda: tf.matmul(left, right))  # (SIDE, SIDE)
    ready = compute()

    def in_turns():
        return [compute().numpy() for _ in range(ROUNDS)]  # .numpy() copies: from a GPU, or to other memory

    def together():
        copies, last = [], None
        for _ in range(ROUNDS):
            answer = compute()
            copies += [last.result()] if last else []  # at most one is under way
            last = copier.submit(answer.numpy)
        return [*copies, last.result()]

    recipe.add(check_agreement("copies together", together(), in_turns(), 0.0))
    return (
        lambda: [compute() for _ in range(ROUNDS)],
        lambda: [ready.numpy() for _ in range(ROUNDS)],
        in_turns,
        together,
    )


def side_by_side(recipe: Recipe, what: str, functions: tuple):
    """Compare the four."""
    limit, seed = recipe.flags.time_limit, recipe.flags.seed
    with recipe.progress(what) as show:
        found = compare(named(what, functions), time_limit=limit, seed=seed, on_progress=show)
    recipe.add(found)
    return found


def named(what: str, functions: tuple) -> dict:
    """The candidates of a comparison."""
    return {f"{what}: {part}": function for part, function in zip(PARTS, functions, strict=True)}


def tell(recipe: Recipe, found) -> None:
    """Say what together takes against the sum of both alone, and against taking turns."""
    one, other, turns, both = (m.median * 1e3 for m in found.measurements)
    what, others = found.measurements[3].name, found.measurements[3].conditions.busy_elsewhere_share
    ratio = found.ratio(found.measurements[2].name, what)
    why = (
        "the work runs side by side" if ratio.verdict is Verdict.FASTER else "no core or no way to memory is left free"
    )
    if others > CROWDED:
        why = f"but other programs took {others:.0%} of the CPU time: quiet the machine, and measure again"
    recipe.fact(f"share of the sum, {what}", both / (one + other))
    recipe.means(
        f"{what} {both:.2f} ms, {both / (one + other):.0%} of the sum of {one:.2f} and {other:.2f} ms alone; against "
        f"{turns:.2f} ms in turns {ratio.verdict}: {ratio.estimate:.2f} times the speed "
        f"[{ratio.low:.2f}, {ratio.high:.2f}]; {why}."
    )


def cores_at_work(function, calls: int = 30) -> float:
    """CPU seconds of this process in a second."""
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(calls):
        function()
    return (time.process_time() - cpu) / (time.perf_counter() - wall)


def all_cores(threads: int, seed: int, time_limit: float):
    """The comparison of the branches where an operation may use so many threads."""
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    return compare(named("all cores each", branches(seed)), time_limit=time_limit, seed=seed)


def in_fresh_process(function, arguments: tuple):
    """What a function returns in a process of its own: the number of threads cannot be changed in this one."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    ctrl_c = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other process inherits that: this one ends it
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        signal.signal(signal.SIGINT, ctrl_c)
        return pool.apply_async(function, arguments).get(DEADLINE + arguments[-1])


def draw(figure, comparisons: dict) -> None:
    """Draw the sum of both alone beside what they take in turns and together."""
    for axes, (title, comparison) in zip(figure.subplots(1, len(comparisons)), comparisons.items(), strict=True):
        one, other, turns, both = (m.median * 1e3 for m in comparison.measurements)
        axes.bar("sum", one, color="#2a6f97")
        axes.bar("sum", other, bottom=one, color="#a9cce3")
        axes.bar(["in turns", "together"], [turns, both], color=["tab:gray", "tab:orange"])
        axes.set_ylabel("ms")
        axes.set_title(title, loc="left")
        axes.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    Recipe(__file__, batch=1).run(main)
