"""How long one synchronous step takes: computing, exchanging gradients, and how much of the one hides the other."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from scipy.stats import norm

from tfperf.scaling.algorithms import ALGORITHMS, Network, allreduce_seconds, best_algorithm, whole_tensor_servers
from tfperf.scaling.constants import CONTENTION, SKEW, TRANSPORTS, Case, Range, Transport
from tfperf.scaling.links import Link
from tfperf.scaling.workload import Workload

__all__ = [
    "Cluster",
    "Collective",
    "Exchange",
    "Prediction",
    "Step",
    "behaviour",
    "chosen_algorithm",
    "collective_seconds",
    "expected_largest",
    "predict_step",
    "timeline",
]

FUSION = 128 * 2**20
"""Bytes of Horovod's fusion buffer; 64 MiB before its pull request 2468."""

CYCLE = 1e-3
"""Seconds of Horovod's cycle; 5 ms before its pull request 2468."""


@dataclass(frozen=True)
class Cluster:
    """Workers and what connects them.

    Attributes:
        workers: how many.
        line: what the cable between nodes gives; with the transport "measured", what messages were seen to take.
        per_node: workers of a node, which share its line.
        inside: the link inside a node; None: as between nodes.
        transport: what moves the gradients, a name of `TRANSPORTS`.
        servers: parameter servers.
        apart: whether those are on hosts of their own.
        reduce: bytes/s that a worker adds up; None: the transport's.
        skew: standard deviation, as a share, of the workers' step times and of the links' bandwidths.
        slowdown: factor by which the workers of a full node slow each other's computing, as where they share cores;
            fewer workers do so in proportion.
    """

    workers: int
    line: Link
    per_node: int = 1
    inside: Link | None = None
    transport: str = "measured"
    servers: int = 1
    apart: bool = True
    reduce: float | None = None
    skew: Range = SKEW
    slowdown: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what is no cluster."""
        if self.transport not in TRANSPORTS:
            raise ValueError(f"expected one of {', '.join(TRANSPORTS)}. Received: {self.transport!r}")
        if min(self.workers, self.per_node, self.servers, self.slowdown) < 1:
            raise ValueError(f"expected workers, servers and a slowdown of at least 1. Received: {self!r}")

    @property
    def software(self) -> Transport:
        """The transport."""
        return TRANSPORTS[self.transport]

    def network(self, case: Case = "likely") -> Network:
        """Return the links as the transport gives them."""
        software = self.software
        inside = self.inside and software.inside(self.inside, case)
        nodes = math.ceil(self.workers / self.per_node)
        slowest = 1 - self.skew.at(case) * expected_largest(nodes)  # a ring goes at the pace of its slowest link
        line = Link(self.line.latency, self.line.bandwidth * slowest)
        return Network(
            self.workers,
            software.link(line, case),
            self.per_node,
            inside,
            self.reduce or software.reduce(case),
            software.start.at(case),
            software.plateau,
            self.servers,
            self.apart,
            line.bandwidth * software.efficiency.at(case),
        )

    def sharing(self) -> float:
        """Return the factor by which the workers of a node slow each other's computing."""
        beside = min(self.workers, self.per_node) - 1
        return 1 + (self.slowdown - 1) * beside / max(1, self.per_node - 1)

    def with_workers(self, workers: int) -> "Cluster":
        """Return the same with another number of workers."""
        return replace(self, workers=workers)


@dataclass(frozen=True)
class Exchange:
    """How gradients are exchanged.

    Attributes:
        algorithm: a name of `ALGORITHMS`, or "auto" for the fastest that the transport offers.
        overlap: whether gradients are exchanged while others are computed.
        fusion: bytes of gradients that share a collective; 0: each has its own.
        cycle: seconds, at least, from one look for ready gradients to the next; no delay is added to it.
        compression: bytes on the link for each byte of a gradient: 0.5 for float16.
        whole_tensors: whether a parameter server has whole tensors and is asked at the end of a step, as TensorFlow's.
        sum_in_node: whether the processor of a node adds up its devices' gradients before those go to such servers.
        eager_fusion: whether only gradients that are there already are fused, and never waited for; None: as the
            transport does.
    """

    algorithm: str = "auto"
    overlap: bool = True
    fusion: float = FUSION
    cycle: float = CYCLE
    compression: float = 1.0
    whole_tensors: bool = False
    sum_in_node: bool = False
    eager_fusion: bool | None = None


class Collective(NamedTuple):
    """One exchange: from second to second of the step, and its bytes before compression."""

    begin: float
    end: float
    size: float


@dataclass(frozen=True)
class Step:
    """Where the seconds of a step go.

    Attributes:
        seconds: of the whole step.
        compute: of the slowest worker, with those of its node beside it.
        communication: in which gradients were exchanged, hidden or not.
        collectives: when each exchange ran.
        algorithm: that was used.
    """

    seconds: float
    compute: float
    communication: float
    algorithm: str
    collectives: tuple[Collective, ...] = field(default=(), repr=False)

    @property
    def exposed(self) -> float:
        """Seconds by which the exchange makes the step longer."""
        return self.seconds - self.compute


@dataclass(frozen=True)
class Prediction:
    """A step in the likely case, and what it cannot be slower or faster than.

    `slow` is serial: nothing overlaps, and all constants are at their slow end. `fast` is full overlap: the longer of
    computing and exchanging, with all constants at their fast end.
    """

    workload: Workload = field(repr=False)
    cluster: Cluster = field(repr=False)
    slow: float
    likely: Step
    fast: float

    @property
    def workers(self) -> int:
        """Workers."""
        return self.cluster.workers

    @property
    def throughput(self) -> Range:
        """Examples a second of all workers."""
        examples = self.workers * self.workload.batch
        return Range(examples / self.slow, examples / self.likely.seconds, examples / self.fast)

    @property
    def efficiency(self) -> Range:
        """Throughput as a share of that many workers alone."""
        alone = self.workers * self.workload.examples_per_second
        return Range(*(value / alone for value in self.throughput))

    @property
    def exposed_share(self) -> float:
        """Share of the step in which nothing is computed for waiting."""
        return self.likely.exposed / self.likely.seconds


def expected_largest(workers: int) -> float:
    """Return the expected largest of that many standard normal numbers: how late the slowest worker is.

    Source: Blom, Statistical estimates and transformed beta-variables (1958): within 2 % of the exact value.
    """
    return 0.0 if workers == 1 else float(norm.ppf((workers - 0.375) / (workers + 0.25)))


def timeline(
    gradients: Sequence[tuple[float, float]],
    seconds_of: Callable[[float], float],
    exchange: Exchange,
    *,
    eager: bool,
    contention: float = 0.0,
) -> tuple[list[Collective], Callable[[float], float]]:
    """Return when each collective runs, and the second at which a part of the computing is done beside them.

    A collective begins when the one before has ended and its last gradient is there:
    `start[l] = max(start[l + 1] + seconds[l + 1], ready[l])`.

    Args:
        gradients: bytes, and the seconds after which it would be ready if nothing were exchanged; in order.
        seconds_of: seconds of a collective of so many bytes.
        exchange: fusion and cycle.
        eager: take what is ready when the link is free, up to the size of the buffer, and look again a cycle later;
            else fill the buffer in order, and wait for its last gradient.
        contention: share by which computing slows down while a collective runs.
    """
    clock = _Clock(contention)
    collectives: list[Collective] = []
    waiting, look = list(gradients), -math.inf
    while waiting:
        if eager:
            look = max(clock.second_of(waiting[0][1]), clock.free, look + exchange.cycle)
            ready = itertools.takewhile(lambda one: clock.second_of(one[1]) <= look, waiting)  # noqa: B023 - used at once
            count = _fused([size for size, _ in ready], exchange.fusion)
            begin = max(look, clock.free)
        else:
            count = _fused([size for size, _ in waiting], exchange.fusion)
            begin = max(clock.free, clock.second_of(waiting[count - 1][1]))
        size = sum(size for size, _ in waiting[:count])
        end = begin + seconds_of(size)
        collectives.append(Collective(begin, end, size))
        clock.occupy(begin, end)
        del waiting[:count]
    return collectives, clock.second_of


class _Clock:
    """Turns seconds of undisturbed computing into seconds of the step, in which collectives slow it down."""

    def __init__(self, contention: float) -> None:
        self.free = 0.0
        self._slower = 1 + contention
        self._done, self._second = 0.0, 0.0

    def second_of(self, done: float) -> float:
        """Return the second at which so much is computed, if no further collective begins."""
        missing, busy = max(0.0, done - self._done), max(0.0, self.free - self._second)
        if missing * self._slower <= busy:
            return self._second + missing * self._slower
        return self._second + busy + missing - busy / self._slower

    def occupy(self, begin: float, end: float) -> None:
        """A collective runs from second to second."""
        busy = max(0.0, min(begin, self.free) - self._second)
        self._done += busy / self._slower + max(0.0, begin - self._second - busy)
        self._second, self.free = begin, end


def _fused(sizes: Sequence[float], buffer: float) -> int:
    """How many of the first gradients share a collective: at least one."""
    total = 0.0
    for count, size in enumerate(sizes):
        total += size
        if count and total > buffer:
            return count
    return len(sizes)


def predict_step(workload: Workload, cluster: Cluster, exchange: Exchange | None = None) -> Prediction:
    """Predict a synchronous step of data-parallel training.

    Args:
        workload: a step of one worker.
        cluster: workers and links.
        exchange: how gradients are exchanged; None: as Horovod does.

    Raises:
        ValueError: there is no such algorithm.
    """
    exchange = exchange or Exchange()
    if exchange.algorithm not in (*ALGORITHMS, "auto"):
        raise ValueError(f"expected one of {', '.join(ALGORITHMS)}, or auto. Received: {exchange.algorithm!r}")
    likely = _step(workload, cluster, exchange, "likely")
    if cluster.workers == 1:
        return Prediction(workload, cluster, likely.seconds, likely, likely.seconds)
    serial = _step(workload, cluster, replace(exchange, overlap=False), "slow")
    fast = _step(workload, cluster, replace(exchange, overlap=False), "fast")
    return Prediction(
        workload,
        cluster,
        max(serial.seconds, likely.seconds),
        likely,
        min(max(fast.compute, fast.communication), likely.seconds),
    )


def chosen_algorithm(workload: Workload, network: Network, exchange: Exchange, offered: Sequence[str]) -> str:
    """Return the algorithm that the gradients are exchanged with: "auto" is the fastest that the software offers."""
    if exchange.algorithm != "auto":
        return exchange.algorithm
    size = min(exchange.fusion, workload.size) or workload.size / len(workload.gradients)
    return best_algorithm(size, network, offered)


def collective_seconds(
    workload: Workload, cluster: Cluster, exchange: Exchange, case: Case = "likely"
) -> Callable[[float], float]:
    """Return the seconds of a collective as a function of the bytes of its gradients."""
    network, software = cluster.network(case), cluster.software
    algorithm = chosen_algorithm(workload, network, exchange, cluster.software.offers)

    def seconds_of(size: float) -> float:
        copied = software.copy_seconds(size, size <= exchange.fusion, case)
        return allreduce_seconds(algorithm, size * exchange.compression, network) + copied

    return seconds_of


def behaviour(cluster: Cluster, exchange: Exchange, case: Case = "likely") -> tuple[float, bool]:
    """Return the share by which a collective slows computing down, and whether only what is ready is fused."""
    on_host = cluster.software.on_host
    contention = 0.0 if on_host or not exchange.overlap else CONTENTION.at(case)
    return contention, on_host if exchange.eager_fusion is None else exchange.eager_fusion


def _step(workload: Workload, cluster: Cluster, exchange: Exchange, case: Case) -> Step:
    """One case of the model."""
    late = cluster.sharing() * (1 + cluster.skew.at(case) * expected_largest(cluster.workers))
    compute = workload.seconds * late
    network = cluster.network(case)
    algorithm = chosen_algorithm(workload, network, exchange, cluster.software.offers)
    if cluster.workers == 1:
        return Step(compute, compute, 0.0, algorithm)
    if algorithm == "parameter_server" and exchange.whole_tensors:
        sizes = [size * exchange.compression for size, _ in workload.gradients]
        moved = whole_tensor_servers(sizes, network, sum_in_node=exchange.sum_in_node)
        return Step(compute + moved, compute, moved, algorithm, (Collective(compute, compute + moved, workload.size),))
    gradients = [(size, at * late if exchange.overlap else compute) for size, at in workload.gradients]
    seconds_of = collective_seconds(workload, cluster, exchange, case)
    contention, eager = behaviour(cluster, exchange, case)
    collectives, second_of = timeline(gradients, seconds_of, exchange, eager=eager, contention=contention)
    end = max(second_of(compute), collectives[-1].end)
    return Step(end, compute, sum(one.end - one.begin for one in collectives), algorithm, tuple(collectives))
