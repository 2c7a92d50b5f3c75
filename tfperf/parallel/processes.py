"""Functions that run in processes of their own at the same time, as programs that share a machine do."""

import contextlib
import multiprocessing
import os
import pickle
import signal
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self, TypeVar

from tfperf.errors import TfperfError, in_one_line
from tfperf.parallel.signals import handling
from tfperf.with_parent import end_with_parent

__all__ = ["WorkerProcesses"]

T = TypeVar("T")

DEADLINE = 120.0
"""Seconds for an output of a process; at first it imports what its functions need."""


class WorkerProcesses:
    """Fresh processes that run functions at the same time and keep what they have loaded from call to call.

    ::

        with WorkerProcesses(2) as workers:
            left, right = workers.run(function, [(1,), (2,)])

    The functions are those of a module, or of the script that is run; that script begins its own work under
    `if __name__ == "__main__":`. All processes end with the `with` block, however it ends: also on an error, Ctrl-C
    and SIGTERM, and where this process is killed (on Linux).
    """

    def __init__(self, number: int, deadline: float = DEADLINE) -> None:
        """Say how many processes `with` is to start.

        Args:
            number: of processes.
            deadline: seconds that one call of `run` may take.
        """
        if number < 1:
            raise ValueError(f"expected at least 1 process. Received: {number}")
        self._number = number
        self._deadline = deadline
        self._processes: list[multiprocessing.process.BaseProcess] = []
        self._pipes: list[Connection] = []
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
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End them."""
        self._end()

    def run(self, function: Callable[..., T], calls: Sequence[tuple[Any, ...]]) -> list[T]:
        """Call a function in as many processes at once as there are tuples of arguments, and wait for all.

        Args:
            function: of a module, or of the script that is run.
            calls: the arguments of each process's call; arguments and outputs are pickled.

        Returns:
            The outputs, in the order of `calls`.

        Raises:
            TfperfError: the function has failed, a process has ended, or the deadline has passed. All processes are
                ended then.
        """
        if len(calls) > len(self._pipes):
            raise ValueError(f"expected at most {len(self._pipes)} calls, one a process. Received: {len(calls)}")
        until = time.monotonic() + self._deadline
        pipes = self._pipes[: len(calls)]
        try:
            for pipe, arguments in zip(pipes, calls, strict=True):
                pipe.send((function, arguments))
            results = [self._receive(pipe, until) for pipe in pipes]
            for failure, _ in results:
                if failure:
                    raise TfperfError(f"{function.__name__} has failed in a process of its own: {failure}")
        except BaseException:
            self._end()  # an output that nobody has read would be taken for that of the next call
            raise
        return [output for _, output in results]

    def _receive(self, pipe: Connection, until: float) -> tuple[str, Any]:
        """The words of a failure or "", and the output."""
        wanted = f"expected an output of each process within {self._deadline:g} s"
        try:
            if not pipe.poll(max(0.0, until - time.monotonic())):
                raise TfperfError(f"{wanted}; one is still at work")
            received: tuple[str, Any] = pipe.recv()
        except (EOFError, OSError) as error:
            raise TfperfError(f"{wanted}; one has ended") from error
        return received

    def _end(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._processes, self._pipes = [], []
        self._signals.close()


def _work(pipe: Connection, parent: int) -> None:
    """Call what the parent sends, until it has ended."""
    if not end_with_parent(parent):
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
