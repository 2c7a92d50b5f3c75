"""What does training through tfperf.parallel.horovod cost, and what do more ranks buy, on this machine?

    python benchmarks/horovod.py            # about 12 minutes; leave the machine alone meanwhile
    python benchmarks/horovod.py --quick    # about 3 minutes, rougher
    python benchmarks/horovod.py --json figures.json

In one run of two ranks with one thread each, taking turns, it measures

- `fit` with hvd.DistributedOptimizer against a loop written by hand around Horovod's DistributedGradientTape,
- two ranks against one rank alone, and against one process with two threads, on resnet18,
- allreduce from 1 KB to 64 MB, with the latency (alpha) and the time per byte (beta) that fit it best.

Exit code 0: `fit` costs at most 2 %, and two ranks train at least 1.9 times the images of one. 1: not so.
"""
# ruff: noqa: E402 - the path must be cleaned before anything is imported

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

sys.path[:] = [folder for folder in sys.path if Path(folder).resolve() != Path(__file__).resolve().parent]
# else `import horovod` would find this file

import numpy as np
import typer
from rich.console import Console

from tfperf.errors import MeasurementError
from tfperf.measure import Comparison, Environment, compare
from tfperf.measure.results import Result, read_result, write_result
from tfperf.measure.words import format_bytes, format_seconds

MOST_COST = 0.02  # of fit, as a share of the loop by hand
LEAST_SPEED_UP = 1.9  # of two ranks against one, each with one thread
BATCH = 32  # images of each rank
STEPS = {"resnet18": 8, "mnist_cnn": 100}  # of one epoch of fit, and of one turn of the loop
SCALING_BATCH = 64
SCALING_STEPS = 2
SIZES = [2**exponent for exponent in range(10, 27, 2)]  # bytes: 1 KiB to 64 MiB
TURN_SECONDS = 0.2  # about as long as one turn of allreduces
TIME_LIMITS = {"resnet18": 240.0, "mnist_cnn": 60.0, "scaling": 240.0, "allreduce": 90.0}
QUICK_SHARE = 0.2
DEADLINE = 1800.0

Function = Callable[[], Any]
console = Console(highlight=False)


# ---------------------------------------------------------------- the two ranks


def data(batch: int, steps: int):
    """Random images and labels, batched, as many as one turn needs; without the autotuner, whose sleep fit awaits."""
    import tensorflow as tf

    generator = np.random.default_rng(0)
    images = generator.standard_normal((batch * steps, 28, 28, 1), dtype=np.float32)
    labels = generator.integers(0, 10, batch * steps)
    batches = tf.data.Dataset.from_tensor_slices((images, labels)).batch(batch)
    options = tf.data.Options()
    options.autotune.enabled = False
    return batches.with_options(options)


def compiled(model: str):
    """A net with SGD and momentum for one process."""
    import keras

    from tfperf import get_net

    net = get_net(model, input_shape=(28, 28, 1), num_classes=10, seed=0)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    net.compile(keras.optimizers.SGD(1e-3, momentum=0.9), loss, jit_compile=False)
    return net


def fit(model: str, *, callbacks: bool) -> Function:
    """One epoch of fit with our optimizer."""
    import tfperf.parallel.horovod as hvd

    net, batches = compiled(model), data(BATCH, STEPS[model])
    hvd.DistributedOptimizer(net.optimizer)
    return lambda: net.fit(batches, verbose=0, shuffle=False, callbacks=hvd.callbacks.default() if callbacks else None)


def loop_by_hand(model: str) -> Function:
    """The same epoch as a loop with Horovod's own tape, which reduces each gradient by itself."""
    import tensorflow as tf

    import tfperf.parallel.horovod as hvd

    net, batches = compiled(model), data(BATCH, STEPS[model])
    hvd.broadcast_variables(net.variables)
    variables = [variable.value for variable in net.trainable_variables]

    @tf.function
    def step(images, labels):
        with tf.GradientTape() as tape:
            loss = net.loss(labels, net(images, training=True))
        gradients = hvd.DistributedGradientTape(tape).gradient(loss, variables)
        net.optimizer.apply_gradients(zip(gradients, net.trainable_variables, strict=True))
        return loss

    def epoch() -> None:
        for images, labels in batches:
            step(images, labels)

    return epoch


def training_steps(*, distributed: bool) -> Function:
    """Some training steps of resnet18 as fit takes them."""
    import tfperf.parallel.horovod as hvd

    net = compiled("resnet18")
    if distributed:
        hvd.DistributedOptimizer(net.optimizer)
    net.make_train_function()
    batches = iter(data(SCALING_BATCH, SCALING_STEPS).repeat())
    return lambda: [net.train_function(batches) for _ in range(SCALING_STEPS)]


def allreduces(size: int, repeats: int) -> Function:
    """So many allreduces of so many bytes, one after the other."""
    import horovod.tensorflow as horovod
    import tensorflow as tf

    values = tf.random.normal([size // 4])

    @tf.function
    def reduce(values):
        return horovod.allreduce(values, op=horovod.Sum, name=f"benchmark_{size}")

    return lambda: [reduce(values) for _ in range(repeats)]


def repeats_for_a_turn(size: int) -> int:
    """How many allreduces of this size take about a turn: rank 0's measure, the same on each rank."""
    import horovod.tensorflow as horovod

    some = allreduces(size, 5)
    some()
    start = time.perf_counter()
    some()
    return int(horovod.broadcast_object(max(3, round(5 * TURN_SECONDS / (time.perf_counter() - start)))))


def as_rank(path: Path, share: float) -> None:
    """What each rank does; rank 0 measures and writes the result."""
    # One thread for operations and one to run them beside the caller's was seen to use 1.45 cores, so: one core.
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(os.environ["HOROVOD_LOCAL_RANK"]) % len(cores)]})
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    import tfperf.parallel.horovod as hvd

    hvd.init()
    comparisons, facts = [], {}

    def measure(title: str, ours: dict[str, Function], alone: dict[str, Function] | None = None) -> Comparison | None:
        def lesson(called: dict[str, Function]) -> Comparison:
            limit = TIME_LIMITS[title] * share
            print(f"{title}: {', '.join([*(alone or {}), *called])}: at most {limit:.0f} s", flush=True)
            return compare({**(alone or {}), **called}, time_limit=limit, margin=0.01)

        found = hvd.lead(ours, lesson)
        if found is not None:
            comparisons.append(found)
        return found

    for model in STEPS:
        ways = {
            f"{model}, loop by hand": loop_by_hand(model),
            f"{model}, fit": fit(model, callbacks=False),
            f"{model}, fit with the default callbacks": fit(model, callbacks=True),
        }
        measure(model, ways)

    with two_threads() as other:
        alone = {"1 rank, 1 thread": training_steps(distributed=False), "1 process, 2 threads": other}
        measure("scaling", {"2 ranks, 1 thread each": training_steps(distributed=True)}, alone)
        if hvd.rank() == 0:
            facts |= {f"cores used: {name}": cores_used(step) for name, step in alone.items() if step is not other}

    repeats = {size: repeats_for_a_turn(size) for size in SIZES}
    found = measure("allreduce", {format_bytes(size): allreduces(size, repeats[size]) for size in SIZES})
    if found is None:
        return
    seconds = {size: m.median / repeats[size] for size, m in zip(SIZES, found.measurements, strict=True)}
    facts |= {f"allreduce of {format_bytes(size)}: seconds": value for size, value in seconds.items()}
    alpha, beta = latency_and_time_per_byte(seconds)
    facts |= {"allreduce: alpha, seconds": alpha, "allreduce: beta, seconds per byte": beta}
    environment = Environment.here()
    write_result(path, Result(name="horovod", environment=environment, comparisons=tuple(comparisons), facts=facts))


def latency_and_time_per_byte(seconds: dict[int, float]) -> tuple[float, float]:
    """alpha and beta of t = alpha + beta * bytes with the least relative errors; seconds, seconds per byte."""
    from scipy.optimize import nnls

    sizes, times = np.array(list(seconds)), np.array(list(seconds.values()))
    (alpha, beta), _ = nnls(np.stack([1 / times, sizes / times], axis=1), np.ones(len(times)))
    return float(alpha), float(beta)


def cores_used(function: Function) -> float:
    """CPU seconds per second while this process runs the function: proof of the number of threads."""
    cpu, wall = time.process_time(), time.perf_counter()
    function()
    return (time.process_time() - cpu) / (time.perf_counter() - wall)


class two_threads:  # noqa: N801 - used as a with statement
    """A process with two threads that trains on request; threads are settled when TensorFlow starts."""

    def __enter__(self) -> Function:
        if os.environ["HOROVOD_RANK"] != "0":
            return lambda: None
        environment = {name: value for name, value in os.environ.items() if "HOROVOD" not in name}
        environment |= {"OMP_NUM_THREADS": "2", "TF_NUM_INTRAOP_THREADS": "2", "TF_NUM_INTEROP_THREADS": "2"}
        command = [sys.executable, "-P", __file__, "--serve"]
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.ask()
        return self.ask

    def ask(self) -> None:
        """Have it train, and wait until it has."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("train\n")
        if self.process.stdout.readline() != "done\n":
            raise MeasurementError("the process with two threads ended; run it alone with --serve to see why")

    def __exit__(self, *_: object) -> None:
        if os.environ["HOROVOD_RANK"] == "0":
            self.process.kill()
            self.process.wait()


def serve() -> None:
    """Be that process: each line of standard input is a request to train."""
    os.sched_setaffinity(0, range(os.cpu_count() or 1))  # rank 0, which starts it, keeps to one core
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(2)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    steps = training_steps(distributed=False)
    for _ in sys.stdin:
        steps()
        print("done", flush=True)


# ---------------------------------------------------------------- what they found


def verdicts(result: Result) -> Iterator[tuple[str, str, bool | None]]:
    """Each figure in words, its limit, and whether it holds; None: no limit was set."""
    resnet, small, scaling, _ = result.comparisons
    for comparison, model in ((resnet, "resnet18"), (small, "mnist_cnn")):
        for way in ("fit", "fit with the default callbacks"):
            ratio = comparison.ratio(f"{model}, loop by hand", f"{model}, {way}")  # speed, so below 1 is a cost
            cost, low, high = (1 / value - 1 for value in (ratio.estimate, ratio.high, ratio.low))
            held = model == "resnet18" and way == "fit"
            words = f"{way} against the loop by hand, {model}: costs {cost:+.1%} [{low:+.1%}, {high:+.1%}]"
            yield words, f"at most {MOST_COST:.0%}" if held else "", cost <= MOST_COST if held else None
    one = scaling.ratio("1 rank, 1 thread", "2 ranks, 1 thread each")
    images = 2 * one.estimate  # two ranks train twice the images in each step
    words = f"2 ranks of 1 thread against 1 rank of 1 thread, resnet18, {SCALING_BATCH} images a rank: {images:.2f}x"
    words += f" [{2 * one.low:.2f}, {2 * one.high:.2f}]"
    yield words, f"at least {LEAST_SPEED_UP}x", images >= LEAST_SPEED_UP
    two = scaling.ratio("1 process, 2 threads", "2 ranks, 1 thread each")
    words = f"2 ranks of 1 thread against 1 process of 2 threads: {2 * two.estimate:.2f}x"
    yield f"{words} [{2 * two.low:.2f}, {2 * two.high:.2f}]", "", None
    alpha = float(result.facts["allreduce: alpha, seconds"])
    beta = float(result.facts["allreduce: beta, seconds per byte"])
    yield f"allreduce: alpha {format_seconds(alpha)}, 1/beta {1 / beta / 1e9:.2f} GB/s", "", None


def show(result: Result) -> bool:
    """Print everything; whether all limits hold."""
    from tfperf.report.tables import comparison_table

    for comparison in result.comparisons[:-1]:
        console.print(comparison_table(comparison))
    times = allreduce_times(result)
    for size, seconds in times.items():
        rate = f"{size / seconds / 1e9:8.3f} GB/s"
        console.print(f"allreduce of {format_bytes(size):>9}: {format_seconds(seconds):>9}, {rate}")
    for name, value in result.facts.items():
        if name.startswith("cores used"):
            console.print(f"{name}: {value:.2f}")
    held = []
    for words, limit, passed in verdicts(result):
        mark = "" if passed is None else f" ({limit}: {'pass' if passed else 'FAIL'})"
        console.print(f"{words}{mark}", markup=False)
        held.append(passed is not False)
    return all(held)


def allreduce_times(result: Result) -> dict[int, float]:
    """Seconds of one allreduce, by bytes."""
    return {size: float(result.facts[f"allreduce of {format_bytes(size)}: seconds"]) for size in SIZES}


def draw(figure: Any, result: Result) -> None:
    """Draw the time of an allreduce against its size, with the line that fits it."""
    times = allreduce_times(result)
    alpha = float(result.facts["allreduce: alpha, seconds"])
    beta = float(result.facts["allreduce: beta, seconds per byte"])
    axes = figure.subplots()
    axes.loglog(list(times), list(times.values()), "o", label="measured, 2 ranks")
    fitted = [alpha + beta * size for size in times]
    axes.loglog(list(times), fitted, "-", label=f"{format_seconds(alpha)} + bytes / {1 / beta / 1e9:.2f} GB/s")
    axes.set_xlabel("bytes, float32")
    axes.set_ylabel("seconds")
    axes.set_title("One allreduce")
    axes.grid(alpha=0.3)
    axes.legend()


def main(
    quick: Annotated[bool, typer.Option("--quick", help="A fifth of the time.")] = False,
    json_path: Annotated[Path | None, typer.Option("--json", help="Where the result goes, the plot beside it.")] = None,
    server: Annotated[bool, typer.Option("--serve", hidden=True)] = False,
    result_path: Annotated[Path | None, typer.Option("--result", hidden=True)] = None,
) -> None:
    """Measure Horovod training on this machine."""
    share = QUICK_SHARE if quick else 1.0
    if server:
        serve()
        return
    if result_path:
        as_rank(result_path, share)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = json_path or Path(folder, "result.json")
        ranks = [sys.executable, "-P", __file__, "--result", str(path.absolute()), *(["--quick"] if quick else [])]
        command = [sys.executable, "-m", "tfperf", "launch", "-np", "2", "--threads", "1", *ranks]
        try:
            subprocess.run(command, check=True, timeout=DEADLINE)
        except subprocess.CalledProcessError as error:
            raise typer.Exit(error.returncode) from error
        result = read_result(path)
    if json_path:
        from tfperf.report.plots import save

        save(json_path.with_suffix(".png"), lambda figure: draw(figure, result))
    raise typer.Exit(0 if show(result) else 1)


if __name__ == "__main__":
    typer.run(main)
