"""Processes of this machine that add arrays up, around a ring or at one of them, and count the bytes they send."""

import contextlib
import hmac
import secrets
import select
import socket
import struct
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from tfperf.errors import TfperfError, in_one_line
from tfperf.parallel.private_network import LOOPBACK
from tfperf.parallel.rank_names import name_rank
from tfperf.processes import WorkerProcesses

__all__ = ["Ring", "RingMember"]

T = TypeVar("T")

Address = tuple[str, int]
"""A host and a port."""

DEADLINE = 30.0
"""Seconds for one call of `Ring.run`."""

PATIENCE = 2 / 3
"""Share of these that a rank waits for a neighbour, so that there is time left to say for which one."""

TOKEN_BYTES = 16
"""Whoever connects must know them; they are drawn at random for each ring."""

GREETING_SECONDS = 2.0
"""Time to say the token, for whoever connects; a stranger who says nothing must not hold the ring up."""

SO_MAX_PACING_RATE = 47
"""The option of socket(7) for the bytes/s that the kernel sends on a connection, by its number on Linux."""

SLOW_BUFFER = 2**17
"""Bytes that wait in the system at either end of a slowed connection; with more, rank 0 would seem to have a network
card for each of the others."""

FOR_RING, FOR_GATHERING = 0, 1
"""What a connection is for."""

GREETING = struct.Struct(f">{TOKEN_BYTES}sBI")
"""The token, what the connection is for, and the rank that connects."""


class Ring:
    """Processes, each connected to the next, that run a function at the same time.

    ::

        with Ring(4) as ring:
            sums = ring.run(RingMember.allreduce, [(array,) for array in arrays])

    All processes and connections end with the `with` block, as those of `WorkerProcesses` do. The connections are
    made over 127.0.0.1; one that does not know the ring's token is refused.
    """

    def __init__(self, size: int, bandwidth: int | None = None, deadline: float = DEADLINE) -> None:
        """Say how many ranks `with` is to start.

        Args:
            size: ranks.
            bandwidth: bytes/s to which Linux slows each connection down, as if it were a network; None: as fast as
                this machine copies.
            deadline: seconds that one call of `run` may take; a rank waits for a neighbour for two thirds of them.
        """
        if bandwidth is not None and not 0 < bandwidth < 2**63:
            raise ValueError(f"expected a bandwidth above 0 and below 2**63 bytes/s. Received: {bandwidth}")
        self.size = size
        self._workers = WorkerProcesses(size, deadline, [name_rank(rank) for rank in range(size)])
        self._patience, self._bandwidth = deadline * PATIENCE, bandwidth

    def __enter__(self) -> Self:
        """Start and connect them."""
        token = secrets.token_bytes(TOKEN_BYTES)
        with contextlib.ExitStack() as stack:
            workers = stack.enter_context(self._workers)
            rest = self.size, token, self._patience, self._bandwidth
            hosts = self._hosts()
            addresses = workers.run(_listen, [(rank, host, *rest) for rank, host in enumerate(hosts)])
            workers.run(_connect, [(addresses,)] * self.size)
            stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End them."""
        self._workers.__exit__(kind, error, trace)

    def _hosts(self) -> Sequence[str]:
        """The address that each rank listens at."""
        return [LOOPBACK] * self.size

    def run(self, function: Callable[..., T], calls: Sequence[tuple[Any, ...]]) -> list[T]:
        """Call a function on all ranks at once, and wait for all.

        Args:
            function: of a module, of the script that is run, or a method of `RingMember`; its first argument is the
                rank's `RingMember`.
            calls: the further arguments on each rank; arguments and outputs are pickled.

        Returns:
            The outputs, by rank.

        Raises:
            TfperfError: the function has failed, a rank has ended, or the deadline has passed; the message names the
                rank. All processes are ended then.
        """
        if len(calls) != self.size:
            raise ValueError(f"expected {self.size} calls, one a rank. Received: {len(calls)}")
        outcomes = self._workers.run(_call, [(function, arguments) for arguments in calls])
        failures = [(one.has_lost_neighbour, rank, one.failure) for rank, one in enumerate(outcomes) if one.failure]
        if failures:
            self._workers.__exit__(None, None, None)
            _, rank, words = min(failures)  # who has lost a neighbour has failed because of another rank
            raise TfperfError(f"{function.__name__} has failed on {name_rank(rank)}: {words}")
        return [one.output for one in outcomes]


class RingMember:
    """One rank of a ring, connected to the next rank, to the one before, and to rank 0.

    All ranks call the same methods in the same order, with arrays of the same shape and type, as in MPI.

    Attributes:
        rank: from 0 to `size` - 1.
        size: ranks in the ring.
        address: host and port where this rank listens until it is connected.
        bytes_sent: what the sockets of this rank have taken in so far.
        messages_sent: how often this rank has begun to send.
        has_lost_neighbour: whether another rank has ended, or done nothing for too long.
    """

    def __init__(
        self, rank: int, host: str, size: int, token: bytes, patience: float, bandwidth: int | None = None
    ) -> None:
        """Listen on a free port.

        Args:
            rank: from 0 to `size` - 1.
            host: the address to listen at: 127.0.0.1 for ranks of one machine.
            size: ranks in the ring.
            token: 16 bytes that only the ranks of this ring know.
            patience: seconds to wait for another rank that does nothing.
            bandwidth: bytes/s to which each connection is slowed down; None: none is.
        """
        self.rank, self.size = rank, size
        self.bytes_sent = self.messages_sent = 0
        self.has_lost_neighbour = False
        self._token, self._patience, self._bandwidth = token, patience, bandwidth
        self._next: _Peer | None = None
        self._before: _Peer | None = None
        self._gathering: list[_Peer] = []  # at rank 0 all others, by rank; elsewhere rank 0
        self._lines: list[socket.socket] = []
        self._server = socket.create_server((host, 0), backlog=2 * size)
        if bandwidth:
            self._server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SLOW_BUFFER)  # connections inherit it
        self.address: Address = self._server.getsockname()

    def connect(self, addresses: Sequence[Address]) -> None:
        """Connect to the next rank and to rank 0, and wait for the ranks that connect to this one.

        Args:
            addresses: where each rank listens.

        Raises:
            TfperfError: one of them does not come.
        """
        if self.size > 1:
            following, before = (self.rank + 1) % self.size, (self.rank - 1) % self.size
            self._next = self._greet(following, addresses[following], FOR_RING)
            if self.rank:
                self._gathering = [self._greet(0, addresses[0], FOR_GATHERING)]
            others = range(1, self.size) if self.rank == 0 else ()
            welcome = self._welcome([(FOR_RING, before), *((FOR_GATHERING, rank) for rank in others)])
            self._before = welcome[0]
            self._gathering += welcome[1:]
        self._server.close()

    def close(self) -> None:
        """Close all connections; the other ranks notice that at once."""
        self._server.close()
        for line in self._lines:
            line.close()

    def allreduce(self, array: NDArray[Any], *, in_place: bool = False) -> NDArray[Any]:
        """Add up the arrays of all ranks around the ring.

        Each rank sends one n-th of an array 2 (n - 1) times: first the sums grow, then they are handed on.

        Args:
            array: numbers, of any shape.
            in_place: write the sum into `array`, which must be contiguous then, and save a copy.

        Returns:
            The sum, equal to the last bit on all ranks, in the shape and type of `array`.

        Raises:
            TfperfError: another rank has ended, or does nothing for too long.

        Source: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations (2009).
        """
        total, rank, size = array.reshape(-1) if in_place else array.flatten(), self.rank, self.size
        chunks = np.array_split(total, size)  # views; their lengths differ by 1 at most
        buffer = np.empty_like(chunks[0])
        for step in range(size - 1):
            mine = chunks[(rank - step - 1) % size]
            received = buffer[: len(mine)]
            self.exchange(chunks[(rank - step) % size], received)
            mine += received
        for step in range(size - 1):
            self.exchange(chunks[(rank - step + 1) % size], chunks[(rank - step) % size])
        return total.reshape(array.shape)

    def gather_to_one(self, array: NDArray[Any]) -> NDArray[Any]:
        """Add up the arrays of all ranks at rank 0, which sends the sum back to each of them.

        Args:
            array: numbers, of any shape.

        Returns:
            The sum, added up in the order of the ranks, in the shape and type of `array`.

        Raises:
            TfperfError: another rank has ended, or does nothing for too long.
        """
        total = array.flatten()
        nothing, received = total[:0], np.empty_like(total)
        for peer in self._gathering:
            if self.rank == 0:
                self._move(None, nothing, peer, received)
                total += received
            else:
                self._move(peer, total, None, nothing)
                self._move(None, nothing, peer, total)
        if self.rank == 0:
            for peer in self._gathering:
                self._move(peer, total, None, nothing)
        return total.reshape(array.shape)

    def exchange(self, outgoing: NDArray[Any], incoming: NDArray[Any]) -> None:
        """Send an array to the next rank while one comes in from the rank before.

        Args:
            outgoing: 1-D and contiguous; an empty one is not sent.
            incoming: 1-D and contiguous, to be filled; an empty one is not waited for.

        Raises:
            TfperfError: another rank has ended, or does nothing for too long.
        """
        self._move(self._next, outgoing, self._before, incoming)

    def _move(self, to: "_Peer | None", outgoing: NDArray[Any], source: "_Peer | None", incoming: NDArray[Any]) -> None:
        """Send and receive at the same time: if all ranks sent first, all would wait for one that receives."""
        out, into = outgoing.view(np.uint8).data, incoming.view(np.uint8).data
        self.messages_sent += len(out) > 0
        while len(out) or len(into):
            sent = self._send(to, out) if to and len(out) else 0
            received = self._receive(source, into) if source and len(into) else 0
            out, into = out[sent:], into[received:]
            if not (sent or received):
                self._wait(to if len(out) else None, source if len(into) else None)

    def _send(self, to: "_Peer", out: memoryview) -> int:
        """Bytes that the socket takes now."""
        try:
            sent = to.line.send(out)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self._lost(to.rank, "it has ended") from error
        self.bytes_sent += sent
        return sent

    def _receive(self, source: "_Peer", into: memoryview) -> int:
        """Bytes that have come."""
        try:
            received = source.line.recv_into(into)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self._lost(source.rank, "it has ended") from error
        if not received:
            raise self._lost(source.rank, "it has ended")
        return received

    def _wait(self, to: "_Peer | None", source: "_Peer | None") -> None:
        """Wait until one of them can go on."""
        reading, writing = ([peer.line] if peer else [] for peer in (source, to))
        if not any(select.select(reading, writing, [], self._patience)):
            silent = [str(peer.rank) for peer in (source, to) if peer]
            raise self._lost(" or ".join(silent), f"it has done nothing for {self._patience:g} s")

    def _lost(self, rank: object, words: str) -> TfperfError:
        self.has_lost_neighbour = True
        return TfperfError(f"rank {self.rank} expected rank {rank} to take part; {words}")

    def _tuned(self, line: socket.socket) -> socket.socket:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # the last bytes of a message do not wait for more
        if self._bandwidth:
            line.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, struct.pack("=Q", self._bandwidth))
            line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SLOW_BUFFER)
        line.setblocking(False)
        self._lines.append(line)
        return line

    def _greet(self, rank: int, address: Address, purpose: int) -> "_Peer":
        """Connect to another rank, and prove to be one of this ring."""
        try:
            line = self._tuned(socket.create_connection(address, self._patience))
            line.sendall(GREETING.pack(self._token, purpose, self.rank))
        except OSError as error:
            raise self._lost(rank, "it has ended") from error
        return _Peer(rank, line)

    def _welcome(self, expected: list[tuple[int, int]]) -> "list[_Peer]":
        """Wait for the ranks that connect to this one, each for a purpose; refuse everybody else."""
        peers: dict[tuple[int, int], _Peer] = {}
        until = time.monotonic() + self._patience
        while missing := [one for one in expected if one not in peers]:
            self._server.settimeout(max(1e-3, until - time.monotonic()))
            try:
                line, _ = self._server.accept()
            except TimeoutError as error:
                raise self._lost(missing[0][1], f"it has not come within {self._patience:g} s") from error
            greeting = _greeting(line)
            token, purpose, rank = GREETING.unpack(greeting or bytes(GREETING.size))
            if greeting and hmac.compare_digest(token, self._token) and (purpose, rank) in missing:
                peers[purpose, rank] = _Peer(rank, self._tuned(line))
            else:
                line.close()
        return [peers[one] for one in expected]


class _Peer(NamedTuple):
    """Another rank, and the connection with it."""

    rank: int
    line: socket.socket


class _Outcome(NamedTuple):
    """What came of a call on one rank."""

    output: Any
    failure: str = ""
    has_lost_neighbour: bool = False


def _greeting(line: socket.socket) -> bytes:
    """What somebody says who has connected; empty where it comes late, or not whole."""
    line.settimeout(GREETING_SECONDS)
    try:
        words = line.recv(GREETING.size, socket.MSG_WAITALL)
    except OSError:
        return b""
    return words if len(words) == GREETING.size else b""


_member: list[RingMember] = []
"""The member that this process is, once it listens."""


def _listen(rank: int, host: str, size: int, token: bytes, patience: float, bandwidth: int | None) -> Address:
    """Become a member, in this process; returns the address."""
    _member.append(RingMember(rank, host, size, token, patience, bandwidth))
    return _member[0].address


def _connect(addresses: list[Address]) -> None:
    _member[0].connect(addresses)


def _call(function: Callable[..., Any], arguments: tuple[Any, ...]) -> _Outcome:
    """Call a function with the member that this process is."""
    member = _member[0]
    try:
        return _Outcome(function(member, *arguments))
    except Exception as error:
        member.close()  # so that the others need not wait
        return _Outcome(None, in_one_line(error), member.has_lost_neighbour)
