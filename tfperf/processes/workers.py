"""Functions that run in processes of their own at the same time, as programs that share a machine do."""

import contextlib
import ctypes
import multiprocessing
import os
import pickle
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any, Self, TypeVar

import cloudpickle

from tfperf.errors import TfperfError, in_one_line
from tfperf.processes.resting import IDLE_LIMIT, LOOK, Rest
from tfperf.processes.signals import handling

__all__ = ["WorkerProcesses"]

T = TypeVar("T")

PR_SET_PDEATHSIG = 1  # of prctl(2)

DEADLINE = 120.0
"""Seconds for an output of a process; at first it imports what its functions need."""


class WorkerProcesses:
    """Fresh processes that run functions at the same time and keep what they have loaded from call to call.

    ::

        with WorkerProcesses(2) as workers:
            left, right = workers.run(function, [(1,), (2,)])

    A script that uses them begins its own work under `if __name__ == "__main__":`. All processes end with the `with`
    block, however it ends: also on an error, Ctrl-C and SIGTERM, and where this process is killed (on Linux).
    """

    def __init__(self, number: int, deadline: float = DEADLINE, names: Sequence[str] = ()) -> None:
        """Say how many processes `with` is to start.

        Args:
            number: of processes.
            deadline: seconds that one call of `run` may take.
            names: what errors call the processes; without names they are counted.
        """
        if number < 1:
            raise ValueError(f"expected at least 1 process. Received: {number}")
        self._names = names or [f"process {index + 1} of {number}" for index in range(number)]
        self._number = number
        self._deadline = deadline
        self._processes: list[multiprocessing.process.BaseProcess] = []
        self._pipes: list[Connection] = []
        self._rests: list[Rest] = []
        self._signals = contextlib.ExitStack()

    def __enter__(self) -> Self:
        """Start them."""
        context = multiprocessing.get_context("spawn")  # TensorFlow does not survive a fork
        self._signals.enter_context(handling(signal.SIGTERM, signal.default_int_handler))  # SIGTERM acts as Ctrl-C
        try:
            with handling(signal.SIGINT, signal.SIG_IGN):  # they inherit that: at Ctrl-C this process ends them
                for _ in range(self._number):
                    ours, theirs = context.Pipe()
                    self._pipes.append(ours)
                    with theirs:
                        process = context.Process(target=_work, args=(theirs, os.getpid()), daemon=True)
                        process.start()
                    self._processes.append(process)
                    assert process.pid is not None  # it has been started
                    self._rests.append(Rest(process.pid))
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End them."""
        self._end()

    def run(
        self,
        function: Callable[..., T],
        calls: Sequence[tuple[Any, ...]],
        deadline: float | None = None,
        idle_limit: float | None = None,
    ) -> list[T]:
        """Call a function in as many processes at once as there are tuples of arguments, and wait for all.

        Args:
            function: with the arguments and outputs it is pickled: by name where the processes can import it, else by
                value.
            calls: the arguments of each process's call.
            deadline: seconds that this call may take, if not as many as all others.
            idle_limit: seconds that a process may neither compute nor read from a disk, for functions that do nothing
                else; None: they may.

        Returns:
            The outputs, in the order of `calls`.

        Raises:
            TfperfError: the function has failed, a process has ended or is stopped, or a limit of time has passed, also
                while arguments or outputs are on their way; it names the process. All are ended then, without waiting
                for the others.
        """
        if len(calls) > len(self._pipes):
            raise ValueError(f"expected at most {len(self._pipes)} calls, one a process. Received: {len(calls)}")
        seconds = self._deadline if deadline is None else deadline
        until, wanted = time.monotonic() + seconds, f"expected an output of each process within {seconds:g} s"
        outputs: dict[int, T] = {}
        for rest in self._rests:
            rest.idle = 0.0
        try:
            for at, arguments in enumerate(calls):
                with self._in_time(at, until, wanted), contextlib.suppress(ConnectionError):
                    self._pipes[at].send_bytes(_pickled((function, arguments)))
            while late := [at for at in range(len(calls)) if at not in outputs]:
                ready = wait([self._pipes[at] for at in late], min(LOOK, max(0.0, until - time.monotonic())))
                if not ready and time.monotonic() > until:
                    raise TfperfError(f"{wanted}; at work still: {', '.join(self._names[at] for at in late)}")
                if resting := self.first_resting(late, idle_limit):
                    raise TfperfError(f"{wanted}; {resting}")
                for at in late:
                    if self._pipes[at] not in ready:
                        continue
                    with self._in_time(at, until, wanted):
                        failure, outputs[at] = self._receive(at, wanted)
                    if failure:
                        raise TfperfError(f"{function.__name__} has failed in {self._names[at]}: {failure}")
        except BaseException:
            self._end()  # an output that nobody has read would be taken for that of the next call
            raise
        return [outputs[at] for at in range(len(calls))]

    def first_ended(self) -> str | None:
        """Say which process has ended, and how; None: all live."""
        for at, process in enumerate(self._processes):
            if not process.is_alive():
                return self._end_of(at)
        return None

    def first_resting(self, among: Iterable[int] | None = None, idle_limit: float | None = None) -> str | None:
        """Say which process is stopped for too long, or has done nothing for too long; None: none is.

        Only the seconds between calls count, up to 1 between two: call it again and again.

        Args:
            among: indices of processes; None: all.
            idle_limit: seconds that they may do nothing; None: for ever.
        """
        for at in range(self._number) if among is None else among:
            rest = self._rests[at]
            rest.look()
            if rest.stopped > IDLE_LIMIT:
                return f"{self._names[at]} is stopped, for {IDLE_LIMIT:g} s"
            if idle_limit is not None and rest.idle > idle_limit:
                return f"{self._names[at]} has done nothing for {idle_limit:g} s"
        return None

    @contextlib.contextmanager
    def _in_time(self, at: int, until: float, wanted: str) -> Iterator[None]:
        """Have a process whose pipe does not move until then be an error in the `with` block."""
        _limit_waits(self._pipes[at], max(LOOK, until - time.monotonic()))  # what is there already is never late
        try:
            yield
        except BlockingIOError as error:
            raise TfperfError(f"{wanted}; at work still: {self._names[at]}") from error

    def _receive(self, at: int, wanted: str) -> tuple[str, Any]:
        """The words of a failure or "", and the output."""
        try:
            received: tuple[str, Any] = self._pipes[at].recv()
        except BlockingIOError:
            raise
        except (EOFError, OSError) as error:
            self._processes[at].join(1.0)  # its pipe closes a moment before it ends
            raise TfperfError(f"{wanted}; {self._end_of(at)}") from error
        return received

    def _end_of(self, at: int) -> str:
        """How a process has ended."""
        code = self._processes[at].exitcode or 0
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        return f"{self._names[at]} has ended, {how}"

    def kill(self) -> None:
        """Kill the processes at once; another thread may do so, for a `run` that is to fail."""
        for process in self._processes:
            process.kill()

    def _end(self) -> None:
        self.kill()
        for process in self._processes:
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._processes, self._pipes, self._rests = [], [], []
        self._signals.close()


def _limit_waits(pipe: Connection, seconds: float) -> None:
    """Have what is sent or received over a pipe raise BlockingIOError where not a byte moves for so long."""
    limit = struct.pack("ll", *divmod(int(seconds * 1e6), 10**6))  # a `struct timeval`
    with socket.socket(fileno=os.dup(pipe.fileno())) as end:
        end.settimeout(None)  # whatever `socket.setdefaulttimeout` says: the pipe would have it, too
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)


def _pickled(call: tuple[Callable[..., Any], tuple[Any, ...]]) -> bytes:
    """A function by its name where the processes can import it, so that it keeps what it has loaded; else by value."""
    try:
        return pickle.dumps(call)
    except (AttributeError, pickle.PicklingError, TypeError):
        by_value: bytes = cloudpickle.dumps(call)
        return by_value


def _work(pipe: Connection, parent: int) -> None:
    """Call what the parent sends, until it has ended."""
    if not _end_with_parent(parent):
        return
    with contextlib.suppress(EOFError, OSError):
        while True:
            message = pipe.recv_bytes()
            try:
                function, arguments = pickle.loads(message)  # noqa: S301  # the parent's own, through a pipe of its own
                reply = pickle.dumps(("", function(*arguments)))
            except Exception as error:
                reply = pickle.dumps((in_one_line(error), None))
            pipe.send_bytes(reply)


def _end_with_parent(parent: int) -> bool:
    """Have Linux kill this process, even while it stands still, when the thread that started it ends; False: it has."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent
