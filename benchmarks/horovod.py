"""What does training through tfperf.parallel.horovod cost, and what do more ranks buy, on this machine?

    python benchmarks/horovod.py            # about 15 minutes; leave the machine alone meanwhile
    python benchmarks/horovod.py --quick    # about 4 minutes, rougher
    python benchmarks/horovod.py --json figures.json
    python benchmarks/horovod.py --transports    # 2 minutes; needs `tfperf horovod install --mpi` with MPICH

In one run, taking turns, on ranks of one thread that keep to a core each, it measures

- `fit` with hvd.DistributedOptimizer against a loop written by hand around Horovod's DistributedGradientTape,
- allreduce from 1 KB to 64 MB, with the latency (alpha) and the time per byte (beta) that fit it best,
- on resnet18, two ranks against one process of one thread, against one of two threads, both without Horovod,
  and against the same two ranks when they exchange nothing: what this machine has to give.

Exit code 0: `fit` costs at most 2 %, and two ranks train at least 95 % of the images that they train when they exchange
nothing. 1: not so.

With --transports it measures allreduces and a step of mnist_cnn on such ranks over Gloo's sockets and over MPI's shared
memory, launched in turns.
"""
# ruff: noqa: E402 - the path must be cleaned before anything is imported

import json
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
from rich.table import Table

from tfperf.errors import MeasurementError
from tfperf.measure import Comparison, Environment, compare
from tfperf.measure.results import Result, read_result, write_result
from tfperf.measure.words import format_bytes, format_seconds

MOST_COST = 0.02  # of fit, as a share of the loop by hand
LEAST_SHARE = 0.95  # of two ranks' speed when they exchange nothing
BATCH = 32  # images of each rank
STEPS = {"resnet18": 16, "mnist_cnn": 200}  # of one fit, whose start and end have a price, and of one turn of the loop
SCALING_BATCH = 128  # the source's 256 on two devices
SCALING_CYCLE = "10"  # ms between two looks of Horovod for work; its 1 ms took 10 % of a core of each rank
SIZES = [2**exponent for exponent in range(10, 27, 2)]  # bytes: 1 KiB to 64 MiB
TURN_SECONDS = 0.2  # about as long as one turn of allreduces
TIME_LIMITS = {"resnet18": 360.0, "mnist_cnn": 90.0, "scaling": 300.0, "allreduce": 60.0}
QUICK_SHARE = 0.2
TRANSPORTS = {"Gloo": [], "MPI": ["--mpi"]}  # what `tfperf launch` is told
TRANSPORT = "transport"  # the part that measures one of them
ROUNDS = 3  # launches of each transport
TRANSPORT_STEPS = 200  # of mnist_cnn in a launch
DEADLINE = 1200.0

Function = Callable[[], Any]
Measure = Callable[..., Any]
Found = tuple[tuple[Comparison, ...], dict[str, Any]]
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


def training_step(model: str = "resnet18", batch: int = SCALING_BATCH, *, distributed: bool) -> Function:
    """One training step as fit takes it."""
    import tfperf.parallel.horovod as hvd

    net = compiled(model)
    if distributed:
        hvd.DistributedOptimizer(net.optimizer)
    net.make_train_function()
    batches = iter(data(batch, 1).repeat())
    return lambda: net.train_function(batches)


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


def join_ranks() -> None:
    """Be a rank of one thread on a core of its own."""
    keep_to_core(int(os.environ["HOROVOD_LOCAL_RANK"]))
    set_threads(1)
    import tfperf.parallel.horovod as hvd

    hvd.init()


def as_rank(path: Path, share: float, part: str) -> None:
    """What each rank does in one part of the run; rank 0 measures and writes the result."""
    join_ranks()
    import tfperf.parallel.horovod as hvd

    def measure(title: str, ours: dict[str, Function], alone: dict[str, Function] | None = None) -> Comparison | None:
        def lesson(called: dict[str, Function]) -> Comparison:
            limit = TIME_LIMITS[title] * share
            print(f"{title}: {', '.join([*(alone or {}), *called])}: at most {limit:.0f} s", flush=True)
            return compare({**(alone or {}), **called}, time_limit=limit, margin=0.01)

        return hvd.lead(ours, lesson)

    found = PARTS[part](measure)
    if found is not None:
        comparisons, facts = found
        environment = Environment.here()
        write_result(path, Result(name="horovod", environment=environment, comparisons=comparisons, facts=facts))


def measure_costs(measure: Measure) -> Found | None:
    """Our fit beside the loop by hand, and allreduce by size."""
    comparisons = []
    for model in STEPS:
        ways = {f"{model}, loop by hand": loop_by_hand(model), f"{model}, fit": fit(model, callbacks=False)}
        if model == "mnist_cnn":  # with resnet18, the broadcast of its weights for so short a fit would be all one sees
            ways[f"{model}, fit with the default callbacks"] = fit(model, callbacks=True)
        comparisons.append(measure(model, ways))
    repeats = {size: repeats_for_a_turn(size) for size in SIZES}
    found = measure("allreduce", {format_bytes(size): allreduces(size, repeats[size]) for size in SIZES})
    if found is None:
        return None
    seconds = {size: m.median / repeats[size] for size, m in zip(SIZES, found.measurements, strict=True)}
    alpha, beta = latency_and_time_per_byte(seconds)
    facts: dict[str, Any] = {f"allreduce of {format_bytes(size)}: seconds": value for size, value in seconds.items()}
    facts |= {"allreduce: alpha, seconds": alpha, "allreduce: beta, seconds per byte": beta}
    return (*comparisons, found), facts


def measure_scaling(measure: Measure) -> Found | None:
    """Two ranks beside one process, of one thread and of two."""
    with Server(threads=1) as one, Server(threads=2) as two:
        alone = {"1 process, 1 thread": one.train, "1 process, 2 threads": two.train}
        ways = {"2 ranks, no exchange": training_step(distributed=False), "2 ranks": training_step(distributed=True)}
        found = measure("scaling", ways, alone)
        if found is None:
            return None
        return (found,), {f"cores used: {name}": server.cores for name, server in zip(alone, (one, two), strict=True)}


def measure_transport(path: Path) -> None:
    """Write the median seconds of an allreduce, by bytes, and of a step of mnist_cnn without and with exchange."""
    join_ranks()
    import tfperf.parallel.horovod as hvd

    calls = {str(size): (allreduces(size, 1), repeats_for_a_turn(size)) for size in SIZES}
    for name, distributed in (("no exchange", False), ("step", True)):
        calls[name] = training_step("mnist_cnn", BATCH, distributed=distributed), TRANSPORT_STEPS
    medians = {}
    for name, (call, repeats) in calls.items():
        call()
        seconds = []
        for _ in range(repeats):
            start = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - start)
        medians[name] = float(np.median(seconds))
    if hvd.rank() == 0:
        path.write_text(json.dumps(medians), encoding="utf-8")


PARTS: dict[str, Callable[[Measure], Found | None]] = {"costs": measure_costs, "scaling": measure_scaling}


def latency_and_time_per_byte(seconds: dict[int, float]) -> tuple[float, float]:
    """alpha and beta of t = alpha + beta * bytes with the least relative errors; seconds, seconds per byte."""
    from scipy.optimize import nnls

    sizes, times = np.array(list(seconds)), np.array(list(seconds.values()))
    (alpha, beta), _ = nnls(np.stack([1 / times, sizes / times], axis=1), np.ones(len(times)))
    return float(alpha), float(beta)


class Server:
    """A process without Horovod, started by rank 0, that trains on request: threads are settled when TensorFlow starts.

    Attributes:
        cores: CPU seconds for each second of the last training step; proof of the number of threads.
    """

    def __init__(self, threads: int) -> None:
        """Prepare it; it starts when entered."""
        self.threads, self.cores = threads, 0.0
        self.process: subprocess.Popen[str] | None = None

    def __enter__(self) -> "Server":
        if os.environ["HOROVOD_RANK"] == "0":
            count = str(self.threads)
            names = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
            environment = {name: value for name, value in os.environ.items() if "HOROVOD" not in name}
            self.process = subprocess.Popen(
                [sys.executable, "-P", __file__, "--serve", count],
                env=environment | dict.fromkeys(names, count),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                bufsize=1,
            )
        return self

    def train(self) -> None:
        """Have it train one step, and wait until it has."""
        assert self.process is not None
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("train\n")
        answer = self.process.stdout.readline()
        if not answer:
            raise MeasurementError("the process without Horovod ended; run it with --serve 1 to see why")
        self.cores = float(answer)

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def serve(threads: int) -> None:
    """Be that process: each line of standard input is a request to train; answers with the cores it used."""
    os.sched_setaffinity(0, range(os.cpu_count() or 1))  # rank 0, which starts it, keeps to one core
    if threads == 1:
        keep_to_core(0)
    set_threads(threads)
    step = training_step(distributed=False)
    for _ in sys.stdin:
        cpu, wall = time.process_time(), time.perf_counter()
        step()
        print((time.process_time() - cpu) / (time.perf_counter() - wall), flush=True)


def keep_to_core(index: int) -> None:
    """Pin this process: TensorFlow with one thread each within and between operations was seen to use 1.45 cores."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[index % len(cores)]})


def set_threads(count: int) -> None:
    """Settle the threads of TensorFlow, before its first operation."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(count)
    tf.config.threading.set_inter_op_parallelism_threads(count)


# ---------------------------------------------------------------- what they found


def verdicts(result: Result) -> Iterator[tuple[str, str, bool | None]]:
    """Each figure in words, its limit, and whether it holds; None: no limit was set."""
    resnet, small, _, scaling = result.comparisons
    for comparison, model in ((resnet, "resnet18"), (small, "mnist_cnn")):
        for way in (m.name.removeprefix(f"{model}, ") for m in comparison.measurements[1:]):
            ratio = comparison.ratio(f"{model}, loop by hand", f"{model}, {way}")  # speed, so below 1 is a cost
            cost, low, high = (1 / value - 1 for value in (ratio.estimate, ratio.high, ratio.low))
            held = model == "resnet18" and way == "fit"
            words = f"{way} against the loop by hand, {model}: costs {cost:+.1%} [{low:+.1%}, {high:+.1%}]"
            yield words, f"at most {MOST_COST:.0%}" if held else "", cost <= MOST_COST if held else None
    ways = {  # two ranks train twice the images in each step
        "1 process of 1 thread": ("1 process, 1 thread", 2, None),
        "1 process of 2 threads": ("1 process, 2 threads", 2, None),
        "the same without exchange": ("2 ranks, no exchange", 1, LEAST_SHARE),
    }
    for title, (baseline, factor, least) in ways.items():
        ratio = scaling.ratio(baseline, "2 ranks")
        images, low, high = (factor * value for value in (ratio.estimate, ratio.low, ratio.high))
        words = f"2 ranks of 1 thread against {title}, resnet18: {images:.2f}x [{low:.2f}, {high:.2f}] the images/s"
        yield words, f"at least {least}x" if least else "", images >= least if least else None
    alpha = float(result.facts["allreduce: alpha, seconds"])
    beta = float(result.facts["allreduce: beta, seconds per byte"])
    yield f"allreduce: alpha {format_seconds(alpha)}, 1/beta {1 / beta / 1e9:.2f} GB/s", "", None


def show(result: Result) -> bool:
    """Print everything; whether all limits hold."""
    from tfperf.report.tables import comparison_table

    resnet, small, _, scaling = result.comparisons
    for comparison in (resnet, small, scaling):
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


def show_transports(found: dict[str, list[dict[str, float]]]) -> None:
    """Print the median launch of each transport beside the others, with the least and the greatest."""
    table = Table(title="two ranks of one thread")
    for title in ("", *TRANSPORTS, "speed-up"):
        table.add_column(title, justify="right" if title else "left")
    for name in found["Gloo"][0]:
        words = {"no exchange": "mnist_cnn, a step, no exchange", "step": "mnist_cnn, a step"}.get(name)
        seconds = {transport: sorted(launch[name] for launch in launches) for transport, launches in found.items()}
        gloo, mpi = (float(np.median(values)) for values in seconds.values())
        cells = [
            f"{format_seconds(float(np.median(values)))} [{format_seconds(values[0])}, {format_seconds(values[-1])}]"
            for values in seconds.values()
        ]
        table.add_row(words or f"allreduce of {format_bytes(int(name))}", *cells, f"{gloo / mpi:.2f}x")
    console.print(table)


def main(
    quick: Annotated[bool, typer.Option("--quick", help="A fifth of the time.")] = False,
    json_path: Annotated[Path | None, typer.Option("--json", help="Where the result goes, the plot beside it.")] = None,
    transports: Annotated[bool, typer.Option("--transports", help="Only Gloo beside MPI, on this machine.")] = False,
    threads: Annotated[int | None, typer.Option("--serve", hidden=True)] = None,
    part: Annotated[str, typer.Option(hidden=True)] = "costs",
    result_path: Annotated[Path | None, typer.Option("--result", hidden=True)] = None,
) -> None:
    """Measure Horovod training on this machine."""
    if threads:
        serve(threads)
        return
    if result_path and part == TRANSPORT:
        measure_transport(result_path)
        return
    if transports:
        found: dict[str, list[dict[str, float]]] = {transport: [] for transport in TRANSPORTS}
        for number in range(ROUNDS):
            for transport, options in TRANSPORTS.items():
                console.print(f"{transport}: launch {number + 1} of {ROUNDS}")
                launched = launch_ranks(
                    TRANSPORT, options=options, read=lambda path: json.loads(path.read_text(encoding="utf-8"))
                )
                found[transport].append(launched)
        show_transports(found)
        return
    if result_path:
        as_rank(result_path, QUICK_SHARE if quick else 1.0, part)
        return
    flags = ["--quick"] if quick else []
    costs = launch_ranks("costs", flags=flags)
    scaling = launch_ranks("scaling", flags=flags, variables={"HOROVOD_CYCLE_TIME": SCALING_CYCLE})
    comparisons = costs.comparisons + scaling.comparisons
    result = costs.model_copy(update={"comparisons": comparisons, "facts": costs.facts | scaling.facts})
    if json_path:
        from tfperf.report.plots import save

        write_result(json_path, result)
        save(json_path.with_suffix(".png"), lambda figure: draw(figure, result))
    raise typer.Exit(0 if show(result) else 1)


def launch_ranks(
    part: str,
    *,
    flags: list[str] | None = None,
    options: list[str] | None = None,
    variables: dict[str, str] | None = None,
    read: Callable[[Path], Any] = read_result,
) -> Any:
    """Launch two ranks for one part of the run; what rank 0 found."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "result.json")
        ranks = [sys.executable, "-P", __file__, "--part", part, "--result", str(path), *(flags or [])]
        command = [sys.executable, "-m", "tfperf", "launch", "-np", "2", "--threads", "1", *(options or []), *ranks]
        try:
            subprocess.run(command, env=os.environ | (variables or {}), check=True, timeout=DEADLINE)
        except subprocess.CalledProcessError as error:
            raise typer.Exit(error.returncode) from error
        return read(path)


if __name__ == "__main__":
    typer.run(main)
