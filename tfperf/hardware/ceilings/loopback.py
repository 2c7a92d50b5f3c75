"""How far it is to another process of this machine, over TCP and the loopback network."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

from tfperf.hardware.ceilings import echo
from tfperf.hardware.repeating import best_decile

__all__ = ["LoopbackSpeed", "measure_loopback"]

HERE = "127.0.0.1"

ROUND_TRIPS = 50
"""In a sample."""

SAMPLES = 60

DEADLINE = 20.0
"""Seconds for each answer of the other process; it needs milliseconds."""


class LoopbackSpeed(NamedTuple):
    """What a Python program finds, waiting for each answer."""

    round_trip_seconds: float
    """One byte there, and back."""
    bytes_per_second: float


def measure_loopback(size: int = 256 * 2**20) -> LoopbackSpeed | None:
    """Send single bytes to a process of our own and wait for each; then `size` bytes, and wait for the last.

    Returns:
        None where there is no loopback network, or the other process does not answer in time.
    """
    try:
        with _connected() as (line, other):
            command = [sys.executable, "-I", str(echo.__file__), str(ROUND_TRIPS * SAMPLES), str(size)]
            process = subprocess.Popen(command, stdin=other.fileno(), start_new_session=True)
            try:
                other.close()  # with its own copy the connection ends when the process does
                return _measured(line, size)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    except OSError:
        return None


def _measured(line: socket.socket, size: int) -> LoopbackSpeed:
    samples = []
    for _ in range(SAMPLES):
        start = time.perf_counter()
        for _ in range(ROUND_TRIPS):
            line.sendall(b"?")
            _answered(line)
        samples.append((time.perf_counter() - start) / ROUND_TRIPS)
    piece, left = bytes(2**20), size
    start = time.perf_counter()
    while left > 0:
        line.sendall(piece[:left])
        left -= len(piece)
    _answered(line)
    return LoopbackSpeed(best_decile(samples), size / (time.perf_counter() - start))


def _answered(line: socket.socket) -> None:
    if not line.recv(1):
        raise ConnectionError("the other process has ended")


@contextlib.contextmanager
def _connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection over 127.0.0.1; nothing listens any more when it is there."""
    with socket.create_server((HERE, 0)) as server, socket.create_connection(server.getsockname(), DEADLINE) as line:
        server.settimeout(DEADLINE)
        other, address = server.accept()
        with other:
            if address != line.getsockname():
                raise ConnectionError("somebody else has connected")
            server.close()
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield line, other
