"""What does "100 % busy" mean?

Source: 003, 其他
Claim: utilization is the share of the time in which anything runs, not the share of the device that works: a kernel
    of one block in a loop makes a GPU 100 % busy. Several programs on one device slow each other. The source names no
    figure.
Expect: three programs that keep a core as busy as a core can be, and do from some hundred thousand to a hundred
    billion operations a second on it. Then each of them in two processes, on one core and on a core each: what the
    two get done together, and what they wait for.
Holds not: where each program has a core and memory bandwidth of its own.
Needs: TensorFlow; no GPU (the devices that are shared are a core and the memory), no data; 2 cores.
Time: about 1 minute on 2 cores; with --quick about 25 s.
Shows: programs
Try: --seed 1: other numbers, and the same shares.
"""

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # else each process tells how TensorFlow was built

import numpy as np
import psutil

from tfperf import Recipe, TfperfError, compare
from tfperf.cores import usable_cores

SIZE = 1024  # of the square matrices of the first program
NUMBERS = 32 * 2**20  # that the second one adds up: 128 MiB, more than caches hold
CALLS = 2000  # of one addition each, in the third
WORK = {  # operations a round
    "matrix products": 2 * 2 * SIZE**3,
    "sums from memory": NUMBERS,
    "single additions": CALLS,
}
BUSY_SECONDS = 1.0  # at least, over which the system counts how busy a process is
UNDISTURBED = 1.9  # times the work of one process, from which on two count as not in each other's way
CROWDED = 0.1  # share of the CPU time that others take, from which on they explain more than sharing does
DEADLINE = 120  # seconds for an answer of a process; it imports TensorFlow first


def programs(seed: int) -> dict[str, Callable]:
    """What the processes run: a round of each, which returns its answer."""
    import tensorflow as tf  # only the workers need it

    tf.config.set_visible_devices([], "GPU")
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    generator = np.random.default_rng(seed)
    rotation = np.linalg.qr(generator.standard_normal((SIZE, SIZE)))[0]  # leaves lengths as they are
    weights, numbers = tf.constant(rotation, tf.float32), tf.ones([NUMBERS])

    def products():
        x = weights  # (SIZE, SIZE)
        for _ in range(2):
            x = tf.matmul(x, weights)
        return x[0]

    def additions():
        x = weights[0, :1]
        for _ in range(CALLS):
            x = x + 1.0
        return x

    return dict(zip(WORK, (products, lambda: tf.reduce_sum(numbers), additions), strict=True))


def main(recipe: Recipe) -> None:
    """Run three programs in one process and in two."""
    cores = sorted(os.sched_getaffinity(0))[: usable_cores()]
    places = {"alone": cores[:1], "two on one core": cores[:1] * 2}
    if len(cores) > 1:
        places["two, a core each"] = cores[:2]
    else:
        recipe.console.print("Two, a core each: skipped, as there is one core.")
    with workers(2, recipe.flags.seed) as run:
        recipe.console.print("Are the answers the same?")
        for program in WORK:
            (alone,) = run(program, places["alone"])
            for place, given in places.items():
                answers = run(program, given)
                recipe.agrees(f"{program}, {place}", answers, [alone] * len(answers), 0.0)
        rates = tell_busy(recipe, run, cores[0])
        done = {program: share(recipe, run, program, places) for program in WORK}
    recipe.plot(lambda figure: draw(figure, rates, done))


def work(pipe, seed: int) -> None:
    """What a worker does: the rounds of a program that it is told, on the core that it is told, until nobody asks."""
    rounds = programs(seed)
    for one_round in rounds.values():
        one_round()
    with contextlib.suppress(EOFError, OSError):  # the recipe has ended
        pipe.send("ready")
        while True:
            program, core = pipe.recv()
            for thread in Path("/proc/self/task").iterdir():
                os.sched_setaffinity(int(thread.name), {core})
            pipe.send(rounds[program]().numpy())


@contextlib.contextmanager
def workers(number: int, seed: int) -> Iterator[Callable]:
    """Start processes; gives a function that has one on each of some cores do a round at once. Ends them."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    context = multiprocessing.get_context("spawn")  # TensorFlow does not survive a fork
    processes, pipes = [], []

    def answers(asked: list, requests: list) -> list:
        try:
            for pipe, request in zip(asked, requests, strict=False):
                pipe.send(request)
            if not all(pipe.poll(DEADLINE) for pipe in asked):
                raise TimeoutError
            return [pipe.recv() for pipe in asked]
        except (EOFError, OSError) as error:
            words = f"expected an answer of each worker within {DEADLINE} s; one has ended, or hangs"
            raise TfperfError(words) from error

    try:
        ctrl_c = signal.signal(signal.SIGINT, signal.SIG_IGN)  # workers inherit that: the recipe ends them
        for _ in range(number):
            ours, theirs = context.Pipe()
            process = context.Process(target=work, args=(theirs, seed), daemon=True)
            process.start()
            theirs.close()
            processes.append(process)
            pipes.append(ours)
        signal.signal(signal.SIGINT, ctrl_c)
        answers(pipes, [])  # that they are ready
        yield lambda program, cores: answers(pipes[: len(cores)], [(program, core) for core in cores])
    finally:
        for process in processes:
            process.kill()
            process.join()


def tell_busy(recipe: Recipe, run: Callable, core: int) -> dict:
    """Have the system say how busy a core is with each program, and count what gets done; program -> operations a s."""
    rates, shares = {}, []
    for program, operations in WORK.items():
        start, rounds = time.perf_counter(), 0
        psutil.cpu_percent(percpu=True)  # the next call tells of the time since this one
        while time.perf_counter() - start < BUSY_SECONDS:
            run(program, [core])
            rounds += 1
        shares.append(psutil.cpu_percent(percpu=True)[core])
        rates[program] = rounds * operations / (time.perf_counter() - start)
        recipe.fact(f"busy, %: {program}", shares[-1])
        recipe.fact(f"floating-point operations a second: {program}", rates[program])
    most, least = max(rates.values()), min(rates.values())
    recipe.finds(
        f"The system calls a core {', '.join(f'{share:.0f} %' for share in shares)} busy with {', '.join(WORK)}. "
        f"It does {', '.join(f'{rate:.1e}' for rate in rates.values())} operations a second: the least is one "
        f"{most / least:,.0f}th of the most. Busy says that something runs, not how much of the core."
    )
    return rates


def share(recipe: Recipe, run: Callable, program: str, places: dict) -> dict:
    """Compare one process with two; place -> the work of all there, as a multiple of one process alone."""
    candidates = {f"{program}, {place}": lambda cores=cores: run(program, cores) for place, cores in places.items()}
    with recipe.progress(program) as show:
        limit, seed = recipe.flags.time_limit, recipe.flags.seed
        found = compare(candidates, time_limit=limit, seed=seed, on_progress=show)
    recipe.add(found)
    others, done = found.measurements[0].conditions.busy_elsewhere_share, {"alone": 1.0}
    for place, cores in places.items():
        if len(cores) == 1:
            continue
        times = found.ratio(f"{program}, alone", f"{program}, {place}")  # of a round of each, begun at once
        done[place], low, high = (len(cores) * speed for speed in times.interval)
        recipe.fact(f"work done as a multiple of one process: {program}, {place}", done[place])
        if others > CROWDED:
            why = f"but other programs took {others:.0%} of the CPU time: quiet the machine, and measure again"
        elif len(set(cores)) == 1:
            why = "they take turns, and each is as slow as if it had half a core"
        elif done[place] >= UNDISTURBED:
            why = "neither needs what the other uses"
        else:
            why = "each has its core, and still they wait for each other: memory, caches and clock are shared"
        recipe.finds(f"{program}, {place}: {done[place]:.2f} times the work of one [{low:.2f}, {high:.2f}]; {why}.")
    return done


def draw(figure, rates: dict, done: dict) -> None:
    """Draw what a busy core does, and what two processes do together."""
    left, right = figure.subplots(1, 2)
    left.barh(list(rates), list(rates.values()), color="#2a6f97")
    left.set_xscale("log")
    left.invert_yaxis()
    left.set_xlabel("floating-point operations a second (logarithmic)")
    left.set_title("One core, busy all the time", loc="left")
    places = list(next(iter(done.values())))
    for number, place in enumerate(places):
        middle = np.arange(len(done)) + (number - 1) * 0.25
        right.bar(middle, [by_place[place] for by_place in done.values()], 0.25, label=place)
    right.set_xticks(np.arange(len(done)), [program.replace(" ", "\n", 1) for program in done])
    right.set_ylabel("work done, as a multiple of one process")
    right.set_title("Two processes", loc="left")
    right.margins(y=0.4)  # room for the legend
    right.legend()


if __name__ == "__main__":
    Recipe(__file__, batch=1).run(main)
