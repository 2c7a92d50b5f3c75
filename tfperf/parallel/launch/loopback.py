"""Keeping Horovod's own services off the network when all ranks are on this machine, and to this user."""

from collections.abc import Callable
from typing import Any

from tfperf.parallel.launch.peers import refuse_strangers

__all__ = ["LOOPBACK", "listen_on", "listen_on_loopback_only"]

LOOPBACK = "127.0.0.1"


def listen_on_loopback_only() -> None:
    """Make every service that Horovod's Python code starts in this process from now on listen on 127.0.0.1 only.

    They refuse other users of this machine, see `peers`. As Horovod 0.28.1 stands they listen on all interfaces, and
    some unpickle what they are sent (CVE-2024-10190, CVE-2026-31234, both unfixed), the service of an elastic worker
    among them. Gloo's own sockets, in C++, follow HOROVOD_GLOO_IFACE instead.

    Raises:
        ModuleNotFoundError: Horovod is not installed.
    """
    listen_on(LOOPBACK)


def listen_on(address: str) -> None:
    """The same with another address of this machine; "": all. Other users of this machine are refused there, too."""
    from horovod.runner.common.util import network as services
    from horovod.runner.http import http_server
    from horovod.runner.util import network

    def find_port(server_factory: Callable[[tuple[str, int]], Any]) -> tuple[Any, int]:
        """In place of Horovod's: the server, and the port that the kernel chose for it."""
        server = server_factory((address, 0))
        refuse_strangers(server)
        return server, server.server_address[1]

    for module in (network, services, http_server):  # the last two hold the name that they imported
        module.find_port = find_port
