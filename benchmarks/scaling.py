"""Does tfperf.scaling predict four workers from what two of them take?

    python benchmarks/scaling.py            # about 10 minutes; leave the machine alone meanwhile
    python benchmarks/scaling.py --quick    # about 3 minutes, fewer rounds
    python benchmarks/scaling.py --json figures.json

Processes of this machine train and add up their gradients around a ring (`tfperf.parallel.Ring`), over two kinds of
links:

- local: the loopback interface, as fast as the processes copy,
- hosts: a network namespace for each process, with a link of limited rate to a switch between them; for root only,
  and where there are `ip` and `tc`.

On each kind, links are fitted to allreduces of two processes and predict those of four, from 1 KB to 64 MB, and the
size from which a ring beats one server. Steps of one process alone, with half and twice the batch, predict steps of
one, two and four. All take turns. Nothing of four is fitted.

Shared cores: four processes have fewer cores each than two. So the rings of two that predict a ring of four are as many
at once as make four processes, each with its share of the cores: there two processes do to each other what four do on
all. A ring goes at the pace of its slowest hop, so that of these rings the slowest one counts, call by call. On them it
is measured, too, how much longer processes compute beside others, and, with a number each to exchange, how far apart
they end.

Exit code 0: the errors of steps are at most 10 % in the median and 20 % at worst, those of allreduces at most 15 %, and
the crossings are within a factor of 1.5. 1: not so.
"""

import contextlib
import functools
import itertools
import json
import math
import os
import random
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from tfperf.files import writing_whole
from tfperf.measure.words import format_bytes, format_seconds
from tfperf.parallel import Ring, RingMember
from tfperf.parallel.private_network import leave_network
from tfperf.processes import WorkerProcesses
from tfperf.scaling import (
    BatchTimes,
    Cluster,
    Exchange,
    Link,
    LinkFit,
    Network,
    Range,
    Workload,
    allreduce_seconds,
    expected_largest,
    fit_link,
    predict_step,
    ring_link,
)

FITTED_SIZES = [2**exponent for exponent in range(10, 27)]  # bytes: 1 KiB to 64 MiB
SIZES = FITTED_SIZES[::2]  # that are tested
SERVER_MOST = 2**22  # one server is far behind beyond
NETS = {"lenet": 32, "mnist_cnn": 64}  # batch of each process
RATE = "500mbit"  # of a link between hosts, each way
TEST, FITTED = 4, 2  # processes
CORES = sorted(os.sched_getaffinity(0))
AT_ONCE = TEST // FITTED  # rings of two that are as many processes as the four
SHARES = [CORES[ring::AT_ONCE] or CORES for ring in range(AT_ONCE)]  # cores of each of them
ROUNDS, STEP_ROUNDS, QUICK_SHARE = 24, 36, 0.25  # of allreduces and of steps; with --quick so much of them
BYTES_A_TURN, MOST_A_TURN = 2**22, 100  # about as many bytes as one turn adds up; allreduces in it at most
STEPS = 4  # in a turn
LEAD = 0.02  # seconds from the order to begin, by which all processes have it
MOST_MEDIAN_ERROR, MOST_ERROR, MOST_ALLREDUCE_ERROR, MOST_CROSSING = 0.10, 0.20, 0.15, 1.5
DEADLINE = 300.0  # seconds for the processes to load TensorFlow and trace a net, or for a turn

console = Console(highlight=False)


class Row(NamedTuple):
    """A figure, predicted and measured, in seconds or bytes."""

    link: str
    what: str
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """What the prediction is off by, as a share of what was measured."""
        return self.predicted / self.measured - 1


# ---------------------------------------------------------------- hosts: network namespaces around a switch

NETWORK = "198.51.100"  # RFC 5737 keeps it from ever being a machine's


def become_host() -> int:
    """Move this process into a network of its own; gives the process's number, by which others find it."""
    leave_network()
    return os.getpid()


def command(line: str) -> None:
    """Run `ip` or `tc` in the network of this process."""
    subprocess.run(line.split(), check=True, capture_output=True, text=True, timeout=10)


def build_switch(hosts: list[int]) -> None:
    """Connect the networks of those processes; each has a line to the switch, limited in both directions."""
    leave_network()
    command("ip link add switch type bridge")
    command("ip link set switch up")
    for index, pid in enumerate(hosts):
        command(f"ip link add port{index} type veth peer name eth0 netns {pid}")
        command(f"ip link set port{index} master switch up")
        command(f"tc qdisc add dev port{index} root tbf rate {RATE} burst 128kb latency 400ms")


def join_network(host: str) -> str:
    """Give the host that this process is its address."""
    command(f"ip addr add {host}/24 dev eth0")
    command("ip link set eth0 up")
    command(f"tc qdisc add dev eth0 root tbf rate {RATE} burst 128kb latency 400ms")
    return host


class Hosts(Ring):
    """A ring whose ranks are hosts: each has a network of its own, and a line to a switch."""

    def __enter__(self) -> "Hosts":
        """Start the processes, build the network and connect them."""
        with contextlib.ExitStack() as stack:
            self._switch = stack.enter_context(WorkerProcesses(1))
            super().__enter__()
            stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        """End them."""
        super().__exit__(*error)
        self._switch.__exit__(*error)

    def _hosts(self) -> Sequence[str]:
        numbers = self._workers.run(become_host, [()] * self.size)
        self._switch.run(build_switch, [(numbers,)])
        return self._workers.run(join_network, [(f"{NETWORK}.{rank + 1}",) for rank in range(self.size)])


def why_no_hosts() -> str | None:
    """Say why there can be no hosts here; None: there can."""
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    missing = [name for name in ("ip", "tc") if not shutil.which(name)]
    return f"there is no {' and no '.join(missing)}" if missing else None


# ---------------------------------------------------------------- what the processes do


def begin_together(member: RingMember, cores: list[int], begin: float) -> None:
    """Pin all threads to the cores, wait until the second in which all rings begin, and then for this ring's ranks."""
    for thread in Path("/proc/self/task").iterdir():
        os.sched_setaffinity(int(thread.name), cores)
    time.sleep(max(0.0, begin - time.monotonic()))
    member.allreduce(np.zeros(member.size, np.float32))


def add_up(member: RingMember, cores: list[int], begin: float, way: str, size: int, repeats: int) -> list[float]:
    """Add up arrays of so many bytes; gives the seconds of each call."""
    array = np.full(size // 4, 0.0, np.float32)
    ways = {"allreduce": functools.partial(member.allreduce, in_place=True), "gather_to_one": member.gather_to_one}
    begin_together(member, cores, begin)
    times = [time.perf_counter()]
    for _ in range(repeats):
        ways[way](array)
        times.append(time.perf_counter())
    return np.diff(times).tolist()


def use_core(member: RingMember, cores: list[int], begin: float, rank: int, size: int, repeats: int) -> list[float]:
    """Add up at rank 0; gives the seconds of a core that one of the ranks uses in a call."""
    array = np.full(size // 4, 0.0, np.float32)
    begin_together(member, cores, begin)
    start = time.process_time()
    for _ in range(repeats):
        member.gather_to_one(array)
    return [(time.process_time() - start) / repeats if member.rank == rank else 0.0]


@functools.cache
def trainer(name: str) -> Callable[[int], Callable[[], np.ndarray]]:
    """Make, once in each process, what computes the gradients of a net by batch, on one thread."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # TensorFlow's log of a healthy start; errors come through the pipe
    import keras
    import tensorflow as tf

    from tfperf import get_net

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    net = get_net(name, input_shape=(28, 28, 1), num_classes=10, seed=0)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function(reduce_retracing=True)
    def gradient(images, labels):
        with tf.GradientTape() as tape:
            loss = loss_of(labels, net(images, training=True))
        return tf.concat([tf.reshape(one, [-1]) for one in tape.gradient(loss, net.trainable_variables)], axis=0)

    @functools.cache
    def compute(batch: int) -> Callable[[], np.ndarray]:
        images = tf.random.stateless_normal((batch, 28, 28, 1), (0, 1))
        labels = tf.range(batch) % 10
        return lambda: gradient(images, labels).numpy()

    return compute


def step(
    member: RingMember, cores: list[int], begin: float, net: str, batch: int, computing: int, exchanged: float
) -> list[float]:
    """Train, where this rank is one of the first `computing`, and add up so many gradients; seconds of a step."""
    compute = trainer(net)(batch)
    compute()  # traces, at first
    begin_together(member, cores, begin)
    if member.rank >= computing:
        return [0.0]
    start = time.perf_counter()
    for _ in range(STEPS):
        gradients = compute()
        if exchanged:
            member.allreduce(gradients[: int(min(exchanged, len(gradients)))], in_place=True)
    return [(time.perf_counter() - start) / STEPS]


def gradient_bytes(_: RingMember, net: str) -> int:
    """Return the bytes of a net's gradients."""
    return int(trainer(net)(1)().nbytes)


# ---------------------------------------------------------------- measuring, two and four in turns

Key = tuple[Any, ...]
Plans = dict[Key, tuple[str, Callable[..., list[float]], tuple[Any, ...]]]
Seconds = dict[Key, list[float]]
Rings = dict[str, list[Ring]]
"""The rings that run at once: "two", one of two ranks; "twos", as many of them as make four; "four", one of four."""


def started(kind: type[Ring], stack: contextlib.ExitStack) -> Rings:
    """Start rings whose links are of one kind."""
    twos = [stack.enter_context(kind(FITTED, deadline=DEADLINE)) for _ in range(AT_ONCE)]
    return {"two": twos[:1], "twos": twos, "four": [stack.enter_context(kind(TEST, deadline=DEADLINE))]}


def each_call(ring: Ring, function: Callable[..., list[float]], *arguments: Any) -> np.ndarray:
    """Run a function on all ranks; gives the seconds of each of its calls, shape (ranks, calls)."""
    return np.array(ring.run(function, [arguments] * ring.size))


def in_turns(rings: Rings, plans: Plans, rounds: int) -> Seconds:
    """Run each plan (rings, function, arguments) once a round, in another order each time; one round warms up.

    Returns:
        The seconds of a call in each round, by the plan's key: of the slowest rank where one ring runs, over all calls;
        where several do, of the slowest rank of all in each call.
    """
    order, seconds = random.Random(0), {key: [] for key in plans}
    with ThreadPoolExecutor(AT_ONCE) as threads:
        for number in range(rounds + 1):
            for key in order.sample(list(plans), len(plans)):
                name, function, arguments = plans[key]
                begin, shares = time.monotonic() + LEAD, SHARES if len(rings[name]) > 1 else [CORES]
                calls = [
                    threads.submit(each_call, ring, function, cores, begin, *arguments)
                    for ring, cores in zip(rings[name], shares, strict=True)
                ]
                times = np.stack([call.result() for call in calls])  # (rings, ranks, calls)
                if number:
                    pace = times.mean(axis=2).max() if len(calls) == 1 else times.max(axis=(0, 1)).mean()
                    seconds[key].append(float(pace))
    return seconds


def measure_allreduces(rings: Rings, rounds: int) -> Seconds:
    """Measure rings and one server by (way, name of the rings, bytes), and the seconds of a core that the server takes.

    These by (0, "twos", bytes) for the server itself, and by (1, "twos", bytes) for the other process.
    """
    plans: Plans = {}
    for way, name in itertools.product(("allreduce", "gather_to_one"), rings):
        # A server has to do with one of the others at a time, so that rings at once tell nothing of it
        for size in sizes_of(way, name) if (way, name) != ("gather_to_one", "twos") else ():
            repeats = max(1, min(MOST_A_TURN, BYTES_A_TURN // size))
            plans[way, name, size] = name, add_up, (way, size, repeats)
    for rank, size in itertools.product(range(FITTED), sizes_of("gather_to_one", "two")):
        plans[rank, "twos", size] = "twos", use_core, (rank, size, max(1, min(MOST_A_TURN, BYTES_A_TURN // size)))
    return in_turns(rings, plans, rounds)


def sizes_of(way: str, rings: str) -> list[int]:
    """Return the bytes that are measured; rings of two are fitted to more of them than four are tested with."""
    sizes = SIZES if rings == "four" else FITTED_SIZES
    return [size for size in sizes if way == "allreduce" or size <= SERVER_MOST]


def measure_steps(rings: Rings, rounds: int) -> Seconds:
    """Measure steps by (net, workers, batch), and by (net, rings, numbers) those of two that exchange so many numbers.

    With a number each, they wait for each other and for nothing else.
    """
    plans: Plans = {}
    for net, batch in NETS.items():
        for each in (batch // 2, batch, 2 * batch):
            plans[net, 1, each] = "two", step, (net, each, 1, 0)
        for name, numbers in itertools.product(("two", "twos"), (0, FITTED)):
            plans[net, name, numbers] = name, step, (net, batch, FITTED, numbers)
        for name, workers in (("two", FITTED), ("four", TEST)):
            plans[net, workers, batch] = name, step, (net, batch, workers, math.inf)
    return in_turns(rings, plans, rounds)


# ---------------------------------------------------------------- predicting


class Model:
    """What allreduces of two processes tell of more of them."""

    def __init__(self, seconds: Seconds, rings: str) -> None:
        """Fit the links to those rings of two, one for a ring and one for a server."""

        def fit(way: str | int, name: str) -> LinkFit:
            sizes = sizes_of("allreduce" if way == "allreduce" else "gather_to_one", name)
            return fit_link(sizes, np.transpose([seconds[way, name, size] for size in sizes]))

        self.ring, self.pair = fit("allreduce", rings), fit("gather_to_one", "two")
        self.server, self.client = fit(0, "twos"), fit(1, "twos")  # seconds of a core

    def hop(self, size: float, workers: int) -> Link:
        """Return the link of a hop, as fitted to messages of the same bytes."""
        message = FITTED * size / workers  # the bytes that two processes add up with messages of that length
        return ring_link(next(link for last, link in self.ring.pieces if message <= last))

    def allreduce(self, size: float, workers: int) -> float:
        """Predict a ring."""
        return allreduce_seconds("ring", size, Network(workers, self.hop(size, workers)))

    def gather(self, size: float, workers: int) -> float:
        """Predict one server, on the first process.

        Each further process takes the time of its bytes on the server's line, and that of the server's core or of the
        others', whichever have more to do: these send what waits in the system until the server turns to it.
        """
        pair, server, client = (fit.seconds(size) for fit in (self.pair, self.server, self.client))
        line = max(0.0, pair - self.pair.link.latency - server - client)
        others = client / (len(CORES) - 1) if len(CORES) > 1 else server + client
        return pair + (workers - FITTED) * (line + max(server, others))

    def step(self, workload: Workload, workers: int, slowdown: float, skew: float) -> float:
        """Predict a step that exchanges its gradients after it has computed all of them."""
        hop = self.hop(workload.size, workers)
        cluster = Cluster(workers, hop, per_node=workers, skew=Range.exactly(skew), slowdown=slowdown)
        exchange = Exchange("ring", overlap=False, fusion=workload.size, cycle=0.0)
        return predict_step(workload, cluster, exchange).likely.seconds


def crossing(first: dict[int, float], second: dict[int, float]) -> float:
    """Find the bytes from which on the first way is the faster one, between the sizes; not a number: nowhere."""
    lead = [(math.log(size), math.log(first[size] / second[size])) for size in first]
    for (low, one), (high, other) in itertools.pairwise(lead):
        if one > 0 >= other:
            return math.exp(low + (high - low) * one / (one - other))
    return math.nan


def rows_of(link: str, rings: Rings, share: float) -> Iterator[Row]:
    """Measure on one kind of link for a share of the rounds, and predict."""
    seconds = measure_allreduces(rings, round(share * ROUNDS))
    medians = {key: statistics.median(one) for key, one in seconds.items()}
    models = {FITTED: Model(seconds, "two"), TEST: Model(seconds, "twos")}
    for workers, model in models.items():
        fit = model.ring.link
        words = f"{format_seconds(fit.latency)} and {fit.bandwidth / 1e6:.0f} MB/s, in {len(model.ring.pieces)} pieces"
        console.print(f"{link}: fitted to {FITTED} processes, for {workers} of them: {words}")
    for size in SIZES:
        predicted = models[TEST].allreduce(size, TEST)
        yield Row(link, f"allreduce of {format_bytes(size)}", predicted, medians["allreduce", "four", size])
    ways = {"allreduce": models[TEST].allreduce, "gather_to_one": models[TEST].gather}
    sizes = sizes_of("gather_to_one", "four")
    expected = [{size: way(size, TEST) for size in sizes} for way in ways.values()]
    measured = [{size: medians[name, "four", size] for size in sizes} for name in ways]
    yield Row(link, "bytes from which the ring wins", crossing(*expected), crossing(*measured))
    medians = {key: statistics.median(one) for key, one in measure_steps(rings, round(share * STEP_ROUNDS)).items()}
    for net, batch in NETS.items():
        alone = BatchTimes.fit({each: medians[net, 1, each] for each in (batch // 2, 2 * batch)})
        size = rings["two"][0].run(gradient_bytes, [(net,)] * FITTED)[0]
        workload = Workload.uniform(net, size, 1, batch, alone.seconds(batch))
        for workers, name in ((1, "two"), (FITTED, "two"), (TEST, "twos")):
            model, words, slowdown, skew = models[max(workers, FITTED)], "", 1.0, 0.0
            if workers > 1:
                apart, waiting = (medians[net, name, numbers] for numbers in (0, FITTED))
                slowdown = max(1.0, apart / medians[net, 1, batch])
                late = (waiting - model.ring.seconds(4 * FITTED)) / apart - 1
                skew = max(0.0, late / expected_largest(FITTED))
                words = f", computing {slowdown:.2f} times as long, with a deviation of {skew:.0%}"
            predicted = model.step(workload, workers, slowdown, skew)
            yield Row(link, f"step of {net}, {workers} processes{words}", predicted, medians[net, workers, batch])


# ---------------------------------------------------------------- the whole


def show(rows: list[Row]) -> bool:
    """Print everything; whether all limits hold."""
    table = Table("link", "four processes, and steps of fewer", "predicted", "measured", "error", box=None)
    for row in rows:
        words = format_bytes if row.what.startswith("bytes") else format_seconds
        cells = (words(value) if math.isfinite(value) else "nowhere" for value in (row.predicted, row.measured))
        table.add_row(row.link, row.what, *cells, f"{row.error:+.0%}")
    console.print(table)
    held = []
    for link in dict.fromkeys(row.link for row in rows):
        errors = {
            word: [abs(row.error) for row in rows if row.link == link and row.what.startswith(word)]
            for word in ("step", "allreduce")
        }
        steps, reduces = errors.values()
        (crossed,) = (row for row in rows if row.link == link and row.what.startswith("bytes"))
        factor = math.exp(abs(math.log(crossed.predicted / crossed.measured)))
        limits = (
            (f"steps: median error {statistics.median(steps):.0%}", statistics.median(steps), MOST_MEDIAN_ERROR),
            (f"steps: largest error {max(steps):.0%}", max(steps), MOST_ERROR),
            (
                f"allreduces: median error {statistics.median(reduces):.0%}, largest {max(reduces):.0%}",
                max(reduces),
                MOST_ALLREDUCE_ERROR,
            ),
            (f"crossing: a factor of {factor:.2f} off", factor, MOST_CROSSING),
        )
        for words, value, most in limits:
            passed = value <= most  # not where it is not a number
            held.append(passed)
            console.print(f"{link}: {words} (at most {most:g}: {'pass' if passed else 'FAIL'})")
    return all(held)


def main(
    quick: Annotated[bool, typer.Option("--quick", help="A quarter of the rounds.")] = False,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write the figures here too.")] = None,
    only: Annotated[str, typer.Option("--link", help="local, hosts or both.")] = "both",
) -> None:
    """Predict four local processes from two, and measure them."""
    kinds: dict[str, type[Ring]] = {"local": Ring, "hosts": Hosts}
    if reason := why_no_hosts():
        console.print(f"hosts are left out: {reason}")
        del kinds["hosts"]
    rows = []
    for name, kind in kinds.items():
        if only in (name, "both"):
            with contextlib.ExitStack() as stack:
                rows += rows_of(name, started(kind, stack), QUICK_SHARE if quick else 1.0)
    if json_path:
        with writing_whole(json_path) as file:
            file.write(json.dumps([row._asdict() for row in rows], indent=1).encode() + b"\n")
    raise typer.Exit(0 if show(rows) else 1)


if __name__ == "__main__":
    typer.run(main)
