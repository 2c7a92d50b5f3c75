"""Links of limited bandwidth: servers of a local cluster as hosts of their own, which Linux slows down."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from tfperf.errors import TfperfError, shortened
from tfperf.processes import run

__all__ = ["HOST", "Traffic", "can_limit_links", "join_by_links", "server_address", "traffic"]

HOST = "10.77.0.1"
"""Address of this network in the sight of the servers that have left it; private (RFC 1918), on no real interface."""

BURST = 64 * 1024
"""Bytes that pass at once: the largest packet that Linux makes of TCP's stream."""

DEADLINE = 20.0
"""Seconds for a command, which needs milliseconds."""

QUEUE = 4 * 2**20
"""Bytes that wait for the link before any is dropped: more than a step sends at once."""


class Traffic(NamedTuple):
    """Bytes that have passed a server's link, with TCP's and IP's headers."""

    received: int
    sent: int


def can_limit_links() -> bool:
    """Whether this user has the rights and the programs that `LocalCluster` needs for a `bandwidth`."""
    return os.geteuid() == 0 and all(shutil.which(program) for program in ("ip", "nsenter", "tc"))


def server_address(number: int) -> str:
    """Address of the server with this number, 0 first."""
    return f"10.77.{number + 1}.2"


def join_by_links(processes: Sequence[int], bandwidth: float) -> None:
    """Join processes, each of which has left for a network of its own, to this one, a private one.

    Args:
        processes: their numbers.
        bandwidth: bytes/s of each link in each direction.

    Raises:
        TfperfError: the rights, a program or a part of the kernel is missing.
    """
    limits = ("root", "tbf", "rate", f"{bandwidth:.0f}bps", "burst", str(BURST), "limit", str(QUEUE))  # bps: bytes
    _run("ip", "address", "add", f"{HOST}/32", "dev", "lo")
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1", encoding="utf-8")
    for server, process in enumerate(processes):
        inside = ("nsenter", "--target", str(process), "--net")
        link, gateway = f"server{server}", f"10.77.{server + 1}.1"
        _run("ip", "link", "add", link, "type", "veth", "peer", "name", "uplink", "netns", str(process))
        _run("ip", "address", "add", f"{gateway}/30", "dev", link)
        _run("ip", "link", "set", link, "up")
        _run(*inside, "ip", "address", "add", f"{server_address(server)}/30", "dev", "uplink")
        _run(*inside, "ip", "link", "set", "uplink", "up")
        _run(*inside, "ip", "route", "add", "default", "via", gateway)
        _run("tc", "qdisc", "add", "dev", link, *limits)
        _run(*inside, "tc", "qdisc", "add", "dev", "uplink", *limits)


def traffic(number: int) -> Traffic:
    """What has passed the link of a server so far."""
    counters = psutil.net_io_counters(pernic=True, nowrap=False)[f"server{number}"]
    return Traffic(received=counters.bytes_sent, sent=counters.bytes_recv)


def _run(*command: str) -> None:
    """Run a command of iproute2 or util-linux."""
    if not shutil.which(command[0]):
        raise TfperfError(f"expected the program {command[0]}, which limits links. Received: none; install iproute2")
    done = run(command, deadline=DEADLINE)
    if done.code:
        words = f"{' '.join(command)}: {shortened(done.errors)}"
        raise TfperfError(f"expected to limit a link, for which root may need more rights. Received: {words}")
