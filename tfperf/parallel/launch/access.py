"""Who reaches the servers that Horovod starts: the address they listen on, and connections of this user alone.

Horovod's rendezvous server asks nobody who they are (CVE-2024-10190), and every user of a machine reaches its loopback.
The kernel knows the owner of a socket, and says so before a byte is read.
"""

import contextlib
import ipaddress
import os
import socket
import socketserver
import struct
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from tfperf.parallel.private_network import LOOPBACK

__all__ = ["listen_on", "listen_on_loopback_only", "refuse_strangers", "same_user"]

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
"""The kernel's TCP sockets, with the owner of each (proc(5)); those of this network namespace."""

ROOT = 0
"""May read and write the memory of any process, so that nothing is gained by refusing it."""

LOOKS = 3
"""Times that the tables are read: while others come and go, one reading may miss an entry."""

_MAPPED = bytes(10) + b"\xff\xff"  # in front of an IPv4 address, RFC 4291, 2.5.5.2


def same_user(connection: socket.socket) -> bool:
    """Whether the process at the other end of a TCP connection runs as this user, or as root, or on another machine.

    A socket that its process has closed belongs to nobody any more, though the table says root, and is refused.
    """
    try:
        here, there = connection.getsockname()[:2], connection.getpeername()[:2]
    except OSError:  # it is gone again
        return False
    if not _is_this_machines(there[0]):
        return True
    for look in range(LOOKS):
        time.sleep(0.005 * look)
        if (owner := _owner(there, here)) is not None:
            return owner in {ROOT, os.geteuid()}
    return False


def refuse_strangers(server: socketserver.BaseServer) -> None:
    """Have a server close connections of other users before it reads from them.

    One of HTTP refuses requests of web pages, too. A page that a browser shows reaches a server here by a name of its
    own that it lets point to this machine (DNS rebinding); that name then stands in the request.
    """
    server.verify_request = lambda request, _: same_user(request)  # type: ignore[method-assign,arg-type,assignment]
    handler: Any = server.RequestHandlerClass
    if issubclass(handler, BaseHTTPRequestHandler):
        server.RequestHandlerClass = type(handler.__name__, (_OfThisHost, handler), {})


class _OfThisHost(BaseHTTPRequestHandler):
    """Answers requests for the address that it listens on, and for no other name."""

    def parse_request(self) -> bool:
        if not super().parse_request():
            return False
        host = self.headers.get("Host")
        if host is None or _name(host) in {self.connection.getsockname()[0], "localhost"}:
            return True
        self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
        return False


def _name(host: str) -> str:
    """The name or address in a header `Host`, without the port."""
    return host.partition("]")[0].strip("[") if host.startswith("[") else host.partition(":")[0].lower()


def _owner(local: tuple[str, int], remote: tuple[str, int]) -> int | None:
    """The user who has the socket from `local` to `remote`; -1: its process has closed it; None: there is none."""
    wanted = {(own, other) for own in _spellings(local) for other in _spellings(remote)}
    for table in TABLES:
        with contextlib.suppress(FileNotFoundError):  # a kernel without IPv6
            for line in table.read_text(encoding="utf-8").splitlines()[1:]:
                _, own, other, _, _, _, _, uid, _, inode, *_ = line.split()
                if (own, other) in wanted:
                    return int(uid) if inode != "0" else -1
    return None


def _spellings(address: tuple[str, int]) -> list[str]:
    """How the tables write an address and port: in hexadecimal words of this machine's order."""
    host, port = address
    packed = ipaddress.ip_address(host.partition("%")[0]).packed
    if packed.startswith(_MAPPED):
        packed = packed[len(_MAPPED) :]
    forms = [packed, _MAPPED + packed] if len(packed) == 4 else [packed]
    return [
        "".join(f"{word:08X}" for word in struct.unpack(f"={len(form) // 4}I", form)) + f":{port:04X}" for form in forms
    ]


def _is_this_machines(host: str) -> bool:
    import psutil

    address = ipaddress.ip_address(host.partition("%")[0])
    address = getattr(address, "ipv4_mapped", None) or address
    own = {one.address.partition("%")[0] for addresses in psutil.net_if_addrs().values() for one in addresses}
    return address.is_loopback or str(address) in own


def listen_on_loopback_only() -> None:
    """Make every service that Horovod's Python code starts in this process from now on listen on 127.0.0.1 only.

    They refuse other users of this machine, see `refuse_strangers`. As Horovod 0.28.1 stands they listen on all
    interfaces, and some unpickle what they are sent (CVE-2024-10190, CVE-2026-31234, both unfixed), the service of an
    elastic worker among them. Gloo's own sockets, in C++, follow HOROVOD_GLOO_IFACE instead.

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
