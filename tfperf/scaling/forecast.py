"""What more workers would buy: a prediction for each number of workers, where it stops paying, and what to change."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tfperf.scaling.constants import Range
from tfperf.scaling.links import Link
from tfperf.scaling.step import Cluster, Exchange, Prediction, predict_step
from tfperf.scaling.workload import BatchTimes, Workload

__all__ = ["Outlook", "Remedy", "outlook"]

LEAST_MARGINAL = 0.5
"""Efficiency of the workers that come last, from which on they pay."""

LEAST_EXPOSED = 0.05
"""Share of a step that waiting must take to be what limits it."""

SMALL_BUFFER = 16 * 2**20
"""Bytes of a fusion buffer that lets the exchange begin early."""

LEAST_GAIN = 0.01
"""Gain of a remedy that is worth a line."""


@dataclass(frozen=True)
class Remedy:
    """Something to change.

    Attributes:
        words: what.
        gain: throughput after it as a multiple of that before, with the most workers.
    """

    words: str
    gain: float


@dataclass(frozen=True)
class Outlook:
    """Predictions for growing numbers of workers.

    Attributes:
        workload, exchange: what was asked.
        predictions: one for each number of workers.
        bottlenecks: what limits each.
        knee: the last number of workers whose marginal efficiency is at least 50 %: of the workers that it adds to the
            number before, at least half of each is gained.
        remedies: what to change with the most workers; the largest gain first.
    """

    workload: Workload = field(repr=False)
    exchange: Exchange
    predictions: tuple[Prediction, ...]
    bottlenecks: tuple[str, ...]
    knee: int
    remedies: tuple[Remedy, ...]

    def strong(self, times: BatchTimes) -> list[tuple[int, Range]]:
        """Return the speed-up over one worker, by number of workers, if the batch of all together stays the same.

        Each worker's batch shrinks, and its computing with it, but never the exchange; numbers of workers beyond the
        batch are left out.
        """
        rows = []
        for one in self.predictions:
            batch = self.workload.batch // one.workers
            if batch < 1:
                break
            smaller = self.workload.at_batch(batch, times.seconds(self.workload.batch / one.workers))
            p = predict_step(smaller, one.cluster, self.exchange)
            whole = times.seconds(self.workload.batch)
            rows.append((one.workers, Range(*(whole / seconds for seconds in (p.slow, p.likely.seconds, p.fast)))))
        return rows


def outlook(workload: Workload, cluster: Cluster, exchange: Exchange | None, workers: Sequence[int]) -> Outlook:
    """Predict a step for each number of workers.

    Args:
        workload: a step of one worker; each worker keeps its batch (weak scaling).
        cluster: its number of workers does not matter.
        exchange: how gradients are exchanged; None: as Horovod does.
        workers: rising numbers.

    Raises:
        ValueError: there are no such numbers.
    """
    exchange = exchange or Exchange()
    if not workers or list(workers) != sorted(set(workers)) or workers[0] < 1:
        raise ValueError(f"expected rising numbers of workers, from 1. Received: {list(workers)!r}")
    predictions = tuple(predict_step(workload, cluster.with_workers(n), exchange) for n in workers)
    return Outlook(
        workload,
        exchange,
        predictions,
        tuple(_bottleneck(one, exchange) for one in predictions),
        _knee(predictions),
        _remedies(predictions[-1], exchange),
    )


def _knee(predictions: Sequence[Prediction]) -> int:
    """The last number of workers that pays."""
    knee, before, throughput = 1, 0, 0.0
    for one in predictions:
        gained = (one.throughput.likely - throughput) / (one.workers - before)
        if gained >= LEAST_MARGINAL * one.workload.examples_per_second:
            knee = one.workers
        before, throughput = one.workers, one.throughput.likely
    return knee


def _bottleneck(prediction: Prediction, exchange: Exchange) -> str:
    """What limits a step: of its causes, that whose doubling shortens the step most."""
    p, cluster = prediction, prediction.cluster
    if p.workers == 1:
        return "compute"
    late = 1 - p.workload.seconds * cluster.sharing() / p.likely.seconds
    if p.exposed_share < LEAST_EXPOSED:
        return "late workers" if late - p.exposed_share > LEAST_EXPOSED else "compute"
    causes: dict[str, Cluster] = {
        "link": replace(cluster, line=Link(cluster.line.latency, 2 * cluster.line.bandwidth)),
        "latency": replace(cluster, line=Link(cluster.line.latency / 2, cluster.line.bandwidth)),
    }
    if cluster.inside is not None and cluster.per_node > 1:
        causes["inside the node"] = replace(cluster, inside=Link(cluster.inside.latency, 2 * cluster.inside.bandwidth))
    if exchange.algorithm == "parameter_server":
        causes["servers"] = replace(cluster, servers=2 * cluster.servers)
    seconds = {name: predict_step(p.workload, one, exchange).likely.seconds for name, one in causes.items()}
    best = min(seconds, key=seconds.__getitem__)
    if seconds[best] > 0.99 * p.likely.seconds:
        return "software"  # no cable helps: one flow, a start for each collective, a sum
    return best


def _remedies(prediction: Prediction, exchange: Exchange) -> tuple[Remedy, ...]:
    """What to change, by gain."""
    p, cluster, workload = prediction, prediction.cluster, prediction.workload
    if p.workers == 1:
        return ()
    tried: list[tuple[str, Callable[[], Prediction]]] = []

    def case(words: str, *, load: Workload = workload, where: Cluster = cluster, how: Exchange = exchange) -> None:
        tried.append((words, lambda: predict_step(load, where, how)))

    if exchange.compression > 0.5:
        case("send gradients as float16", how=replace(exchange, compression=0.5))
    case(
        f"a batch of {4 * workload.batch} a worker, if memory and accuracy allow it",
        load=workload.at_batch(4 * workload.batch, 4 * workload.seconds),
    )
    if exchange.algorithm != "auto":
        case(
            f"another algorithm ({_fastest_algorithm(p, exchange)})",
            how=replace(exchange, algorithm="auto", whole_tensors=False),
        )
    if exchange.fusion < 2**20:
        case("fuse small gradients into a buffer", how=replace(exchange, fusion=128 * 2**20))
    if exchange.fusion > SMALL_BUFFER and exchange.overlap and not cluster.software.on_host:
        case(f"a fusion buffer of {SMALL_BUFFER / 2**20:.0f} MiB", how=replace(exchange, fusion=SMALL_BUFFER))
    if not exchange.overlap and not exchange.whole_tensors:
        case("exchange gradients while others are computed", how=replace(exchange, overlap=True))
    if cluster.network().nodes > 1:
        faster = Link(cluster.line.latency, 4 * cluster.line.bandwidth)
        case(f"a link between nodes of {str(faster).partition(',')[0]}", where=replace(cluster, line=faster))
    if cluster.inside is not None and cluster.per_node > 1:
        inner = Link(cluster.inside.latency, 4 * cluster.inside.bandwidth)
        case(f"a link inside nodes of {str(inner).partition(',')[0]}", where=replace(cluster, inside=inner))
    if cluster.transport == "nccl-tcp":
        case("RDMA in place of TCP", where=replace(cluster, transport="nccl-rdma"))
    nodes = cluster.network().nodes
    if exchange.algorithm == "parameter_server" and cluster.servers < nodes:
        case(f"{nodes} parameter servers", where=replace(cluster, servers=nodes))
    if exchange.whole_tensors:
        case("tensors split over all servers", how=replace(exchange, whole_tensors=False))
    remedies = [Remedy(words, predicted().throughput.likely / p.throughput.likely) for words, predicted in tried]
    return tuple(sorted((one for one in remedies if one.gain > 1 + LEAST_GAIN), key=lambda one: (-one.gain, one.words)))


def _fastest_algorithm(prediction: Prediction, exchange: Exchange) -> str:
    """The algorithm that "auto" would take."""
    chosen = predict_step(
        prediction.workload, prediction.cluster, replace(exchange, algorithm="auto", whole_tensors=False)
    )
    return chosen.likely.algorithm.replace("_", " ")
