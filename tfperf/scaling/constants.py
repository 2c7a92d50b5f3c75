"""What software makes of a line: the constants of the model, each a range, with where its two ends come from.

The likely value is the middle of the range, always: no constant is fitted, and all hold for every row of
`benchmarks/published.py`.
"""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tfperf.scaling.links import Link

__all__ = ["CASES", "CONTENTION", "COPY", "CORE", "INSIDE", "SKEW", "TRANSPORTS", "Case", "Range", "Transport"]

Case = Literal["slow", "likely", "fast"]

CASES: tuple[Case, ...] = ("slow", "likely", "fast")


class Range(NamedTuple):
    """A quantity that is not known exactly: what makes a step slowest, what is likely, what makes it fastest."""

    slow: float
    likely: float
    fast: float

    def at(self, case: Case) -> float:
        """Return one of the three."""
        return float(getattr(self, case))

    @classmethod
    def between(cls, slow: float, fast: float) -> "Range":
        """Return the range whose likely value is its middle."""
        return cls(slow, (slow + fast) / 2, fast)

    @classmethod
    def exactly(cls, value: float) -> "Range":
        """Return a range of one value."""
        return cls(value, value, value)


TCP_PAYLOAD = Range.between(0.90, 0.95)
"""Share of an Ethernet line that a TCP flow fills. Fast: iperf's 95 % of 25 Gbit/s; the frames allow 1,448 of 1,538
bytes. Slow: with the acknowledgements of a flow in the other direction."""

ROCE_PAYLOAD = Range.between(0.65, 0.926)
"""Share of a RoCE line that a ring of NCCL fills. Fast: 1,024 of 1,106 bytes of a frame. Slow: nccl-tests issue 112.
Between them: 75 % in NCCL's issue 495, which its maintainers call a little low."""

NCCL_SOCKET = Range.between(1.7e9, 2.45e9)
"""Bytes/s of NCCL through a socket, both directions at once. Fast: iperf's 49 % of 40 Gbit/s. Slow: nccl-tests issue
83, 8 V100 on two nodes with 25 Gbit/s."""

MPI_SOCKET = Range.between(0.85e9, 1.225e9)
"""One thread both sends and receives for MPI, which NCCL does with two: half."""

GRPC_TENSOR = Range.between(0.8e9, 1.18e9)
"""Bytes/s of one tensor through gRPC, which one thread copies: TensorFlow's issue 6116 reports 800 MB/s, and a full
line of 10 Gbit/s."""

CORE = Range.between(5e9, 15e9)
"""Bytes/s between a core of a server and its memory (STREAM, one thread); a copy takes two of them for each of its own,
a sum three."""

COPY = Range.between(6e9, 12e9)
"""Bytes/s between a GPU and its host. Fast: PCIe 3.0 x16 (NCCL, PCI_WIDTH). Slow: two GPUs share it."""

CONTENTION = Range.between(0.189, 0.0)
"""Share by which computing slows down while a GPU exchanges gradients. Slow: the mean of arXiv 2507.03114, on fast
links."""

INSIDE = Range.between(0.5, 1.0)
"""Share of a link inside a node that a ring fills. Fast: all. Slow: half, where both directions go through the host's
memory (nccl-tests issue 74: 20 GB/s in both directions together, of PCIe 4.0 x16)."""

SKEW = Range.between(0.03, 0.0)
"""Standard deviation, as a share, of the step times of like workers, and of the bandwidths of like links. Slow: what
is seen between GPUs of one model under one load; fast: none."""

NCCL_HOP = Range.between(14e-6, 9.6e-6)
"""Seconds of a hop between nodes in a ring of NCCL: src/graph/tuning.cc, NET, Simple, of NCCL 2.12 and of 2.7."""

NCCL_START = Range.between(2e-4, 2e-5)
"""Seconds before a collective's first byte. Fast: the smallest messages of nccl-tests. Slow: its kernel waits for one
of the net's, and Horovod for an event."""

FREE = Range.exactly(0.0)

WHOLE = Range.exactly(1.0)

UNLIMITED = Range.exactly(math.inf)


@dataclass(frozen=True)
class Transport:
    """A way to move gradients between nodes, and what it makes of a line.

    Attributes:
        name: as the command line has it.
        words: what it is.
        efficiency: payload as a share of the line's bandwidth.
        stream: bytes/s of one flow, however fast the line is.
        hop: seconds that software adds to the latency of a hop between nodes.
        inside_hop: the same inside a node.
        start: seconds before the first byte of a collective moves.
        on_host: whether processors add up the gradients: these are copied to the host and back, the thread that looks
            for ready gradients waits for each collective, and computing goes on undisturbed. Else the devices add up
            what arrives, in the order in which their programs were queued.
        plateau: factor of the latency of a ring between nodes once messages are large.
        offers: the algorithms that the software chooses from.
        measured: whether the link is what messages were seen to take: then nothing is added to it.
    """

    name: str
    words: str
    efficiency: Range = WHOLE
    stream: Range = UNLIMITED
    hop: Range = FREE
    inside_hop: float = 0.0
    start: Range = FREE
    on_host: bool = False
    plateau: float = 1.0
    offers: tuple[str, ...] = ("ring", "tree")
    measured: bool = False

    def link(self, line: Link, case: Case = "likely") -> Link:
        """Return what is left of a line for one flow.

        Args:
            line: latency and bandwidth of the cable and the switches.
            case: which of the ranges' values.
        """
        bandwidth = min(line.bandwidth * self.efficiency.at(case), self.stream.at(case))
        return Link(line.latency + self.hop.at(case), bandwidth)

    def inside(self, link: Link, case: Case = "likely") -> Link:
        """Return what is left of a link inside a node."""
        share = 1.0 if self.measured else INSIDE.at(case)
        return Link(link.latency + self.inside_hop, link.bandwidth * share)

    def reduce(self, case: Case = "likely") -> float:
        """Return the bytes/s of gradients that a worker adds up."""
        return CORE.at(case) / 3 if self.on_host and not self.measured else math.inf

    def copy_seconds(self, size: float, fused: bool, case: Case = "likely") -> float:
        """Return the seconds in which gradients are copied to where they are exchanged, and back.

        Args:
            size: bytes.
            fused: whether they go through a buffer with others.
            case: which of the ranges' values.
        """
        if not self.on_host or self.measured:
            return 0.0
        return 2 * size / COPY.at(case) + (2 * size / (CORE.at(case) / 2) if fused else 0.0)


TRANSPORTS = {
    one.name: one
    for one in (
        Transport("nccl-tcp", "NCCL over TCP", TCP_PAYLOAD, NCCL_SOCKET, NCCL_HOP, 5.7e-6, NCCL_START, plateau=1.9),
        Transport("nccl-rdma", "NCCL over RDMA", ROCE_PAYLOAD, UNLIMITED, NCCL_HOP, 5.7e-6, NCCL_START, plateau=1.9),
        Transport(
            "mpi-tcp", "MPI on the host, over TCP", TCP_PAYLOAD, MPI_SOCKET, Range.between(25e-6, 5e-6), 1e-6,
            NCCL_START, on_host=True, offers=("ring", "halving_doubling"),
        ),
        Transport(
            "grpc", "TensorFlow's servers over gRPC", TCP_PAYLOAD, GRPC_TENSOR, Range.between(2e-4, 5e-5), 1e-4,
            offers=("parameter_server",),
        ),
        Transport("measured", "as measured", on_host=True, offers=("ring",), measured=True),
    )
}  # fmt: skip
"""Name -> transport. The latencies of NCCL are those of its own model, src/graph/tuning.cc: 5.7 us for a hop over PCIe,
and 1.9 times the latency for large messages between nodes."""
