"""What does "100 % busy" mean?

Source: 003, 其他
Claim: GPU-Util is the share of the time in which any kernel ran: a kernel of one block in a loop makes a GPU 100 %
    busy. Two programs on one device most likely slow each other. The source names no figure.
Expect: three equally busy programs, of which one does 100,000 times what another does and more; then two of each.
Holds not: where each program has a core and memory bandwidth of its own.
Needs: TensorFlow; no GPU (the devices that are shared are a core and the memory), no data; 2 cores.
Time: about 1 minute on 2 cores; with --quick about 25 s.
Shows: share_the_device, stay_on, busy_and_rate
Try: --numbers 1000: the sums keep a core as busy, at less than a tenth of the operations: the calls take the time.
"""

import functools
import os
import time
from pathlib import Path

import numpy as np

from tfperf import Flag, Recipe
from tfperf.hardware import usable_cores
from tfperf.processes import WorkerProcesses


def share_the_device():
    """Take one thread an operation, and GPU memory as it is needed: by itself TensorFlow takes all of both."""
    import tensorflow as tf  # only the processes that use it load it

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)


def stay_on(core):
    """Keep all threads of this process, TensorFlow's too, on one core, and leave the others to other programs."""
    for thread in Path("/proc/self/task").iterdir():
        os.sched_setaffinity(int(thread.name), {core})


def busy_and_rate(step, operations, seconds=1.0):
    """Read how busy the system calls this process, beside what it gets done: only the second says what you gain."""
    start, cpu, steps = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - start < seconds:
        step()
        steps += 1
    elapsed = time.perf_counter() - start
    return (time.process_time() - cpu) / elapsed, steps * operations / elapsed


SIZE, CALLS = 1024, 500  # rows of the square matrices of the first program; additions of one number in the third
PROGRAMS = ("matrix products", "sums from memory", "single additions")
CROWDED = 0.1  # share of the CPU time that others take, from which on they explain more than sharing does


def main(recipe: Recipe) -> None:
    """Watch three programs keep a core busy, and run each of them in one process and in two."""
    cores, data = sorted(os.sched_getaffinity(0))[: usable_cores()], (recipe.flags.seed, recipe.flags.numbers)
    places = {"alone": cores[:1], "two on one core": cores[:1] * 2}
    places |= {"two, a core each": cores[:2]} if len(cores) > 1 else {}
    rates, done = {}, {}
    with WorkerProcesses(2) as workers:
        for program in PROGRAMS:
            alone, _ = workers.run(work, [(program, cores[0], data)] * 2)
            for place, given in places.items():
                outputs = workers.run(work, [(program, core, data) for core in given])
                recipe.agrees(f"{program}, {place}", outputs, [alone] * len(given), 0.0)
            ((busy, rates[program]),) = workers.run(work, [(program, cores[0], data, True)])
            recipe.fact(f"busy, %: {program}", busy * 100)
            recipe.fact(f"floating-point operations a second: {program}", rates[program])
            recipe.finds(f"{program} keep a core {busy:.0%} busy, with {rates[program]:.1e} operations a second.")
            done[program] = share(recipe, workers, program, places, data)
    most, least = max(rates.values()), min(rates.values())
    recipe.finds(
        f"The least that a busy core does is one {most / least:,.0f}th of the most. Busy says that something runs, not "
        "how much of the core: watch the work that gets done."
    )
    recipe.corrects(
        "programs do not simply run on a GPU at once while there is room, as 000 has it: processes take turns there, "
        "unless MPS or MIG shares the GPU out. Kernels of one process can overlap, on several streams."
    )
    recipe.plot(draw, rates, done)


@functools.cache
def programs(seed, numbers) -> dict:
    """Make the programs in this process, once: name -> one round, which returns its output, and its operations."""
    share_the_device()
    import tensorflow as tf

    weights = tf.constant(np.random.default_rng(seed).standard_normal((SIZE, SIZE), np.float32))
    ones = tf.ones([numbers])

    def additions():
        x = weights[0, :1]
        for _ in range(CALLS):
            x = x + 1.0
        return x

    rounds = (lambda: tf.matmul(weights, weights)[0], lambda: tf.reduce_sum(ones), additions)
    return dict(zip(PROGRAMS, zip(rounds, (2 * SIZE**3, numbers, CALLS), strict=True), strict=True))


def work(program, core, data, watched=False):
    """Do a round of a program on this core; watched: as many as a second has room for."""
    step, operations = programs(*data)[program]
    stay_on(core)
    return busy_and_rate(step, operations) if watched else step().numpy()


def share(recipe: Recipe, workers: WorkerProcesses, program: str, places: dict, data: tuple) -> dict:
    """Compare one process with two; place -> the work of all there, as a multiple of one process alone."""
    ways = {
        f"{program}, {place}": lambda cores=cores: workers.run(work, [(program, core, data) for core in cores])
        for place, cores in places.items()
    }
    found = recipe.compare(ways, tolerance=None, what=program)
    others, done = found.measurements[0].conditions.busy_elsewhere_share, {"alone": 1.0}
    for place, cores in list(places.items())[1:]:
        times = found.ratio(f"{program}, alone", f"{program}, {place}")  # for a round of each, begun at once
        done[place], low, high = (len(cores) * speed for speed in times.interval)
        recipe.fact(f"work done as a multiple of one process: {program}, {place}", done[place])
        if others > CROWDED:
            why = f"but other programs took {others:.0%} of the CPU time: quiet the machine, and measure again"
        elif len(set(cores)) == 1:
            why = "they take turns, and each is as slow as if it had half a core"
        else:
            why = "what this lacks of 2 is lost to the memory, caches and clock that they share"
        recipe.finds(f"{program}, {place}: {done[place]:.2f} times the work of one [{low:.2f}, {high:.2f}]; {why}.")
    return done


def draw(figure, rates: dict, done: dict) -> None:
    """Draw what a busy core does, and what two processes do together."""
    left, right = figure.subplots(1, 2)
    left.barh(list(rates), list(rates.values()), color="#2a6f97")
    left.set(xscale="log", xlabel="operations a second (logarithmic)", title="One core, busy all the time")
    left.invert_yaxis()
    for number, place in enumerate(done[PROGRAMS[0]]):
        middle = np.arange(len(done)) + (number - 1) * 0.25
        right.bar(middle, [by_place[place] for by_place in done.values()], 0.25, label=place)
    right.set_xticks(np.arange(len(done)), [program.replace(" ", "\n", 1) for program in done])
    right.set(ylabel="work done, as a multiple of one process", title="Two processes")
    right.margins(y=0.4)  # room for the legend
    right.legend()


if __name__ == "__main__":
    Recipe(__file__, batch=1, numbers=Flag(2**25, "numbers that the second program adds up")).run(main)
