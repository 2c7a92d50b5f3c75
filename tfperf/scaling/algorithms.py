"""What a collective costs: bytes and seconds of one allreduce, by algorithm."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tfperf.scaling.links import Link

__all__ = [
    "ALGORITHMS",
    "Network",
    "allreduce_seconds",
    "best_algorithm",
    "bytes_sent",
    "crossing_size",
    "server_loads",
    "whole_tensor_servers",
]

NCCL_PLATEAU_BYTES = 65536 / 16
"""Bytes for each rank from which a ring of NCCL has its larger latency (src/graph/tuning.cc)."""


@dataclass(frozen=True)
class Network:
    """Workers, and the links between them as the software that uses them gives them.

    Attributes:
        workers: how many.
        between: the link of a node to any other.
        per_node: workers of each node, which share its link.
        inside: the link of a worker to the next one in its node; None: as between nodes.
        reduce: bytes/s that a worker adds up.
        start: seconds that each collective costs before its first byte moves.
        plateau: factor of a ring's latency between nodes for large messages.
        servers: parameter servers.
        apart: whether they are on hosts of their own; else on the first nodes of the workers.
        port: bytes/s of a node's port, which several flows fill together; None: one flow fills it.
    """

    workers: int
    between: Link
    per_node: int = 1
    inside: Link | None = None
    reduce: float = math.inf
    start: float = 0.0
    plateau: float = 1.0
    servers: int = 1
    apart: bool = True
    port: float | None = None

    def __post_init__(self) -> None:
        """Refuse what is no network."""
        if not (self.workers >= 1 and self.per_node >= 1 and self.servers >= 1 and self.reduce > 0):
            raise ValueError(f"expected workers, workers of a node and servers of at least 1. Received: {self!r}")

    @property
    def nodes(self) -> int:
        """Nodes; the last one may have fewer workers."""
        return math.ceil(self.workers / self.per_node)

    @property
    def local(self) -> int:
        """Workers of the fullest node."""
        return min(self.workers, self.per_node)

    @property
    def within(self) -> Link:
        """The link inside a node."""
        return self.inside or self.between

    @property
    def port_bandwidth(self) -> float:
        """Bytes/s of a node's port."""
        return self.port or self.between.bandwidth

    @property
    def slowest(self) -> float:
        """Bytes/s of the slowest link on a path through all workers."""
        links = [self.within.bandwidth] * (self.local > 1) + [self.between.bandwidth] * (self.nodes > 1)
        return min(links, default=math.inf)

    def with_workers(self, workers: int) -> "Network":
        """Return the same with another number of workers."""
        return replace(self, workers=workers)


def bytes_sent(algorithm: str, size: float, workers: int, servers: int = 1) -> float:
    """Return the bytes that the busiest worker (or server) sends in one allreduce between workers with a link each.

    Args:
        algorithm: one of `ALGORITHMS`.
        size: bytes of the gradients.
        workers: how many.
        servers: parameter servers, with a host each.
    """
    n = workers
    if n == 1:
        return 0.0
    if algorithm == "gather":
        return (n - 1) * size  # the root hands the sum to each
    if algorithm == "tree":
        return 2.0 * size
    if algorithm == "parameter_server":
        return max(size, n * size / servers)
    if algorithm in ("ring", "halving_doubling", "hierarchical"):
        return 2 * (n - 1) / n * size
    raise ValueError(f"expected one of {', '.join(ALGORITHMS)}. Received: {algorithm!r}")


def allreduce_seconds(algorithm: str, size: float, network: Network) -> float:
    """Return the seconds in which every worker has the sum of everyone's `size` bytes; 0 for one worker.

    Raises:
        ValueError: there is no such algorithm.
    """
    if algorithm not in ALGORITHMS:
        raise ValueError(f"expected one of {', '.join(ALGORITHMS)}. Received: {algorithm!r}")
    if network.workers == 1 or size <= 0:
        return 0.0
    return network.start + ALGORITHMS[algorithm](size, network)


def best_algorithm(size: float, network: Network, names: Sequence[str] | None = None) -> str:
    """Return the name of the algorithm that is fastest for `size` bytes."""
    return min(names or ALGORITHMS, key=lambda name: allreduce_seconds(name, size, network))


def crossing_size(first: str, second: str, network: Network, most: float = 2.0**40) -> float | None:
    """Return the bytes from which on the other of two algorithms is the faster one; None: up to `most` it never is."""

    def lead(size: float) -> float:
        return allreduce_seconds(first, size, network) - allreduce_seconds(second, size, network)

    low, high = 1.0, most
    if lead(low) * lead(high) >= 0:
        return None
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if lead(middle) * lead(low) > 0 else (low, middle)
    return high


def server_loads(sizes: Sequence[float], servers: int, split: bool) -> list[float]:
    """Return the bytes on each parameter server: equal parts, or whole tensors, each to the server that has least."""
    loads = [0.0] * servers
    if split:
        return [sum(sizes) / servers] * servers
    for size in sizes:
        loads[loads.index(min(loads))] += size
    return loads


def whole_tensor_servers(sizes: Sequence[float], network: Network, *, sum_in_node: bool = False) -> float:
    """Return the seconds of pushing gradients to parameter servers and, after that, pulling variables from them.

    Each tensor is whole on one server, as TensorFlow places variables: one flow moves it, so that a large one is slower
    than the port. Pull follows push, as the next step begins when all variables are new.

    Args:
        sizes: bytes of each tensor.
        network: `between` is one flow.
        sum_in_node: whether the processor of a node adds up its devices' gradients first, over its bus (`within`).
    """
    if network.workers == 1 or not sizes:
        return 0.0
    clients = network.nodes if sum_in_node else network.workers
    inside = 2 * network.local * sum(sizes) / network.within.bandwidth if sum_in_node and network.local > 1 else 0.0
    if network.apart:
        share, largest = clients, clients
    else:
        share, largest = max(0, clients - clients // network.nodes), clients
    if share == 0 or (sum_in_node and network.nodes == 1):
        return inside
    port = share * max(server_loads(sizes, network.servers, split=False)) / network.port_bandwidth
    flow = largest * max(sizes) / network.between.bandwidth
    return inside + 2 * (network.between.latency + max(port, flow))


def _gather(size: float, network: Network) -> float:
    """All send to one, which adds up and sends the sum to each: its link carries everything."""
    n = network.workers
    near, far = network.local - 1, n - network.local
    one_way = near * network.within.seconds(size) + far * network.between.seconds(size)
    return 2 * one_way + (n - 1) * size / network.reduce


def _ring(size: float, network: Network) -> float:
    """2 (n-1) steps around all workers; each link carries 2 (n-1) / n of the bytes.

    Source: Patarasu and Yuan, Bandwidth optimal all-reduce algorithms, JPDC 69 (2009); the latency of a ring through
    nodes as in NCCL, src/graph/tuning.cc.
    """
    n, crossings = network.workers, 2 * (network.nodes - 1)
    large = network.nodes > 1 and size >= n * NCCL_PLATEAU_BYTES
    latency = (2 * (n - 1) - crossings) * network.within.latency + crossings * network.between.latency
    moved = 2 * (n - 1) / n * size / network.slowest
    return latency * (network.plateau if large else 1.0) + moved + (n - 1) / n * size / network.reduce


def _tree(size: float, network: Network) -> float:
    """Up a tree and down, in chunks: the two binary trees of NCCL, in which a link carries the bytes once each way.

    Source: Sanders, Speck and Traeff, Two-tree algorithms for full bandwidth broadcast, reduction and scan (2009).
    """
    levels = math.ceil(math.log2(network.nodes)) if network.nodes > 1 else 0
    latency = 2 * ((network.local - 1) * network.within.latency + levels * network.between.latency)
    return latency + 2 * size / network.slowest + size / network.reduce


def _halving_doubling(size: float, network: Network) -> float:
    """Exchange halves, quarters, ... with ever nearer partners, and back; workers beyond a power of 2 join by one more
    exchange. Partners inside a node come last, so that the node's link carries the bytes of all its workers.

    Source: Rabenseifner, Optimization of collective reduction operations, ICCS 2004.
    """
    n = network.workers
    whole = 1 << (n.bit_length() - 1)
    seconds, part, distance = 0.0, size, whole
    while distance > 1:
        distance, part = distance // 2, part / 2
        inside = distance < network.per_node
        link, sharing = (network.within, 1) if inside else (network.between, network.local)
        seconds += 2 * link.seconds(part * sharing)
    seconds += (whole - 1) / whole * size / network.reduce
    if whole < n:
        seconds += 2 * network.between.seconds(size) + size / network.reduce
    return seconds


def _hierarchical(size: float, network: Network) -> float:
    """Add up inside each node, in a ring; then a ring between nodes for each part; then gather inside each node."""
    local, nodes = network.local, network.nodes
    inside = 2 * ((local - 1) * network.within.latency + (local - 1) / local * size / network.within.bandwidth)
    between = 0.0
    if nodes > 1:
        latency = 2 * (nodes - 1) * network.between.latency
        between = latency + 2 * (nodes - 1) / nodes * size / network.between.bandwidth
    reduced = (local - 1) / local * size + (nodes - 1) / nodes * size / local
    return inside + between + reduced / network.reduce


def _parameter_server(size: float, network: Network) -> float:
    """Push and pull of evenly split gradients, both directions at once.

    Apart: max(M / B, n M / (k B)); on the workers' nodes 2 (n-1) M / (n B). Gradients of a node are added up first.
    """
    nodes, servers = network.nodes, network.servers
    inside = 2 * network.within.seconds((network.local - 1) / network.local * size) if network.local > 1 else 0.0
    if network.apart:
        busiest = max(size, nodes * size / servers)
    else:
        hosts = min(servers, nodes)
        busiest = max(size * (hosts < nodes), (nodes + hosts - 2) / hosts * size)
    moved = 2 * network.between.latency + busiest / network.port_bandwidth
    return inside + (moved if busiest else 0.0) + nodes * size / (servers * network.reduce)


ALGORITHMS: dict[str, Callable[[float, Network], float]] = {
    "gather": _gather,
    "ring": _ring,
    "tree": _tree,
    "halving_doubling": _halving_doubling,
    "hierarchical": _hierarchical,
    "parameter_server": _parameter_server,
}
"""Name -> seconds of (bytes, network) with at least two workers."""
