"""A network of this program's own, which has one interface: loopback.

TensorFlow's servers, of which MultiWorkerMirroredStrategy starts one in each worker, listen on all
interfaces whatever address they are given, and run what anybody sends them. In a network namespace of
its own "all interfaces" is loopback, and nobody outside can reach them.
"""

import contextlib
import ctypes
import fcntl
import ipaddress
import os
import socket
import struct
import sys
from pathlib import Path
from typing import NoReturn

import psutil

__all__ = ["enter_private_network", "is_private", "run_privately"]

TRIED = "TFPERF_PRIVATE_NETWORK"
"""Environment variable of a program that was started anew; it is not started a third time."""

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000  # <linux/sched.h>
SIOCSIFFLAGS, IFF_UP = 0x8914, 0x1  # <linux/sockios.h>, <linux/if.h>


def is_private() -> bool:
    """Whether no interface that this process sees has an address beyond loopback."""
    families = (socket.AF_INET, socket.AF_INET6)
    addresses = [
        address.address.partition("%")[0]  # fe80::1%eth0
        for interface in psutil.net_if_addrs().values()
        for address in interface
        if address.family in families
    ]
    return all(ipaddress.ip_address(address).is_loopback for address in addresses)


def enter_private_network() -> None:
    """Start this program anew in a network of its own; returns only in a program that need not, or cannot.

    Call it first thing: the program's command line is run again from its beginning, in this same process.
    `is_private` tells afterwards whether it took effect; kernels and containers may forbid it.
    """
    if is_private() or TRIED in os.environ:
        return
    os.environ[TRIED] = "1"
    sys.stdout.flush()
    start = f"from {__name__} import run_privately; run_privately()"
    command = [sys.executable, "-c", start, sys.executable, *sys.orig_argv[1:]]
    os.execv(sys.executable, command)  # noqa: S606 - the program itself


def run_privately() -> NoReturn:
    """Become the program of this process's arguments, in a network of its own where that is allowed.

    To be called in a process of one thread, as the kernel wants it.
    """
    with contextlib.suppress(OSError):
        _make_network()
    os.execv(sys.argv[1], sys.argv[1:])  # noqa: S606 - the program itself


def _make_network() -> None:
    """Move this process to a network namespace; root's own, else through a user namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    if libc.unshare(CLONE_NEWNET):
        if libc.unshare(CLONE_NEWUSER | CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "no network namespace for this user")
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))
