"""How far it is to another process of this machine, over TCP and the loopback network."""

import contextlib
import socket
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

from tfperf.hardware.ceilings import echo
from tfperf.hardware.repeating import Repeats, best_decile
from tfperf.processes import ChildProcess

__all__ = ["LoopbackSpeed", "measure_loopback"]

HERE = "127.0.0.1"

ROUND_TRIPS = 50
"""In a sample."""

SAMPLES = 10
"""In a round."""

ROUNDS = 8
"""Each of round trips, and a stream."""

DEADLINE = 20.0
"""Seconds for each answer of the other process; it needs milliseconds."""


class LoopbackSpeed(NamedTuple):
    """What a Python program finds, waiting for each answer."""

    round_trips: Repeats
    """Seconds of one byte there, and back."""
    streams: Repeats
    """Seconds of one byte of very many."""

    @property
    def round_trip_seconds(self) -> float:
        """One byte there, and back."""
        return self.round_trips.seconds

    @property
    def bytes_per_second(self) -> float:
        """In a stream."""
        return 1 / self.streams.seconds


def measure_loopback(size: int = 256 * 2**20) -> LoopbackSpeed | None:
    """Send single bytes to a process of our own and wait for each; then `size` bytes, and wait for the last.

    The best decile of a round's trips, the best of eight rounds.

    Returns:
        None where there is no loopback network, or the other process does not answer in time.
    """
    try:
        with _connected() as (line, other):
            numbers = ROUNDS, ROUND_TRIPS * SAMPLES, size
            command = [sys.executable, "-I", str(echo.__file__), *map(str, numbers)]
            with ChildProcess(command, stdin=other.fileno()):
                other.close()  # with its own copy the connection ends when the process does
                return _measured(line, size)
    except OSError:
        return None


def _measured(line: socket.socket, size: int) -> LoopbackSpeed:
    rounds = [(best_decile(_round_trip(line) for _ in range(SAMPLES)), _stream(line, size)) for _ in range(ROUNDS)]
    there_and_back, in_a_stream = zip(*rounds, strict=True)
    return LoopbackSpeed(
        Repeats("loopback, there and back", there_and_back), Repeats("loopback, in a stream", in_a_stream)
    )


def _round_trip(line: socket.socket) -> float:
    """Seconds of one."""
    start = time.perf_counter()
    for _ in range(ROUND_TRIPS):
        line.sendall(b"?")
        _answered(line)
    return (time.perf_counter() - start) / ROUND_TRIPS


def _stream(line: socket.socket, size: int) -> float:
    """Seconds of a byte."""
    piece, left = bytes(2**20), size
    start = time.perf_counter()
    while left > 0:
        line.sendall(piece[:left])
        left -= len(piece)
    _answered(line)
    return (time.perf_counter() - start) / size


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
