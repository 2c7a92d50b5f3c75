"""A process whose only network is loopback, for servers that listen on all interfaces.

TensorFlow's servers, of which MultiWorkerMirroredStrategy starts one in each worker, listen on all interfaces whatever
address they are given, and run what anybody sends them. In a network namespace of its own "all interfaces" is loopback,
and nobody outside can reach them.
"""

import contextlib
import ctypes
import fcntl
import ipaddress
import multiprocessing
import os
import pickle
import signal
import socket
import struct
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import ParamSpec, TypeVar

import psutil

from tfperf.errors import TfperfError, in_one_line
from tfperf.processes import ChildProcess, run
from tfperf.processes.signals import handling

__all__ = ["LOOPBACK", "in_private_network", "is_private", "leave_network", "main"]

P = ParamSpec("P")
T = TypeVar("T")

LOOPBACK = "127.0.0.1"

PATIENCE = 120.0
"""Seconds that the process has to end by itself, and to end what it started, once it is interrupted."""

GRACE = 5.0
"""Seconds that it has where this process was killed."""

TRIAL = 20.0
"""Seconds to try whether a process can leave the network; it needs less than one."""

COMMAND = (sys.executable, "-P", "-m", "tfperf.parallel.private_network")
"""What runs `main`."""

LEAVE, STAY = "leave", "stay"
"""Whether the process is to leave the network."""

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000  # <linux/sched.h>
SIOCSIFFLAGS, IFF_UP = 0x8914, 0x1  # <linux/sockios.h>, <linux/if.h>


def is_private() -> bool:
    """Whether the interfaces that this process sees have addresses of loopback, and no others."""
    families = (socket.AF_INET, socket.AF_INET6)
    addresses = [
        address.address.partition("%")[0]  # fe80::1%eth0
        for interface in psutil.net_if_addrs().values()
        for address in interface
        if address.family in families
    ]
    return bool(addresses) and all(ipaddress.ip_address(address).is_loopback for address in addresses)


def in_private_network(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in a fresh process that has a network of its own, with loopback alone.

    Servers that the function and its child processes start cannot be reached from anywhere else. Where the kernel or
    the container allows no such network, the function runs in the usual one: it can ask `is_private`. Ctrl-C and
    SIGTERM raise KeyboardInterrupt in it, so that it can end what it has started.

    Args:
        function: of a module, or of the script that is run; with what it uses it is pickled by value.
        *args: its arguments, pickled, as is its result.
        **kwargs: its arguments by name, pickled too.

    Raises:
        TfperfError: the function has raised it, or has failed otherwise, or its process has ended.
    """
    import cloudpickle

    name = getattr(function, "__name__", str(function))
    message = cloudpickle.dumps((sys.path, function, args, kwargs))
    how = LEAVE if _can_leave_network() else STAY
    ours, theirs = multiprocessing.Pipe()
    with ours, handling(signal.SIGTERM, signal.default_int_handler):
        with theirs:
            command = [*COMMAND, how, str(theirs.fileno())]
            shared = {"stdin": None, "stdout": None, "stderr": None}
            process = ChildProcess(command, pass_fds=[theirs.fileno()], grace=GRACE, **shared)  # type: ignore[arg-type]
        with process:
            try:
                ours.send_bytes(message)
                failure, result = pickle.loads(ours.recv_bytes())  # noqa: S301  # through a pipe of its own
            except (EOFError, OSError) as error:
                raise TfperfError(f"expected a result of {name}, its process has ended without one") from error
            except BaseException:
                process.interrupt()
                with contextlib.suppress(TimeoutError):
                    process.wait(PATIENCE)
                raise
    if failure:
        raise TfperfError(failure)
    value: T = result
    return value


def leave_network() -> None:
    """Move this process, which must have one thread, to a network of its own; root's own, else by a user namespace.

    Raises:
        OSError: the kernel or the container forbids it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    if libc.unshare(CLONE_NEWNET):
        if libc.unshare(CLONE_NEWUSER | CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "no network namespace for this user")
        Path("/proc/self/setgroups").write_text("deny", encoding="utf-8")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="utf-8")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="utf-8")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))


def _can_leave_network() -> bool:
    """Whether a process can leave the network, as one finds that only tries it.

    Ubuntu 24.04 lets a usual user make the namespaces and forbids what is to be done in them; then no way leads back.
    """
    with contextlib.suppress(TimeoutError):
        return run([*COMMAND, LEAVE], deadline=TRIAL).code == 0
    return False


def main() -> None:
    """Leave the network if told to, call the function that the pipe's other end sends, and send its result.

    `in_private_network` runs this in a process of its own: `python -m tfperf.parallel.private_network HOW [PIPE]`.
    Without a pipe it only tries to leave.
    """
    how, *pipe = sys.argv[1:]
    if how == LEAVE:
        leave_network()  # first of all: NumPy starts threads when it is imported
    if not pipe:
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with Connection(int(pipe[0])) as connection, contextlib.suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
        connection.send_bytes(_reply(connection.recv_bytes()))


def _reply(message: bytes) -> bytes:
    """Call what the message says; pickled: the words of a failure or "", and the result."""
    import cloudpickle

    name = "the function"
    try:
        sys.path[:], function, args, kwargs = cloudpickle.loads(message)
        name = getattr(function, "__name__", name)
        return pickle.dumps(("", function(*args, **kwargs)))
    except TfperfError as error:
        return pickle.dumps((str(error), None))
    except Exception as error:
        return pickle.dumps((f"{name} has failed in a process of its own: {in_one_line(error)}", None))


if __name__ == "__main__":
    main()
