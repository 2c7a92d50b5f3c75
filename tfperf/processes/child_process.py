"""A command that runs, and all that descends from it: they end together, at the latest with this process."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from tfperf.processes import keeper
from tfperf.processes.patience import Patience

__all__ = ["DEVNULL", "PIPE", "STDOUT", "ChildProcess"]

DEVNULL, PIPE, STDOUT = subprocess.DEVNULL, subprocess.PIPE, subprocess.STDOUT
"""What a command reads from and writes to, beside open files."""

KEEPER = (sys.executable, "-I", "-S", keeper.__file__)
"""What stands before every command."""

MARK = "TFPERF_CHILD"
"""Environment variable that tells the descendants of a child whose keeper was killed."""

LAST_RESORT = 10.0
"""Seconds beyond its grace that a keeper has to end everything, before it is killed itself."""

START_SECONDS = 60.0
"""Time for a keeper to start a command; it needs 0.03 s, more where memory or disks are at their limits."""


class ChildProcess:
    """A command that runs behind a keeper (see `keeper`), so that whatever it starts ends with it.

    ::

        with ChildProcess(["make"], stdout=PIPE) as process:
            ...

    It and all that descends from it end with the `with` block, however that ends, and with this process, also where
    that is killed, and while any of them stands still. They have a session and process group of their own: Ctrl-C is
    for this process, which then ends them. Several threads may use it.

    Attributes:
        pid: number of the command's process.
        stdin: where to write what it reads; None: not a pipe.
        stdout, stderr: what it writes; None: not pipes.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        stdin: int | IO[Any] | None = DEVNULL,
        stdout: int | IO[Any] | None = DEVNULL,
        stderr: int | IO[Any] | None = DEVNULL,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        grace: float = 0.0,
        on_terminal: bool = False,
        pass_fds: Sequence[int] = (),
    ) -> None:
        """Start it.

        Args:
            command: a program and its arguments.
            stdin, stdout, stderr: an open file, `PIPE`, `DEVNULL`; None: that of this process.
            environment: all variables; None: those of this process.
            folder: where it runs; None: where this process does.
            grace: seconds between SIGTERM and SIGKILL at its end; 0: SIGKILL at once, as it has nothing to put in
                order.
            on_terminal: it stays in this process's group, so that keys reach it: Ctrl-C, Ctrl-Z.
            pass_fds: file descriptors that it inherits.

        Raises:
            OSError: it cannot be started; `filename` is the program.
        """
        self._grace, self._mark = grace, uuid.uuid4().hex
        self._ordering = threading.Lock()
        variables = dict(os.environ if environment is None else environment) | {MARK: self._mark}
        variables.pop(keeper.SHARED_GROUP, None)
        if on_terminal:
            variables[keeper.SHARED_GROUP] = "1"
        self._code: int | None = None
        self._line, theirs = socket.socketpair()
        try:
            with theirs:
                self._keeper = subprocess.Popen(
                    [*KEEPER, str(theirs.fileno()), str(grace), *map(str, command)],
                    stdin=stdin,
                    stdout=stdout,
                    stderr=stderr,
                    env=variables,
                    cwd=folder,
                    start_new_session=not on_terminal,
                    pass_fds=[theirs.fileno(), *pass_fds],
                )
        except BaseException:
            self._line.close()
            raise
        self.stdin, self.stdout, self.stderr = self._keeper.stdin, self._keeper.stdout, self._keeper.stderr
        try:
            self._line.settimeout(START_SECONDS)
            number = int(self._told() or 0)
            if number <= 0:
                words = os.strerror(-number) if number else "the process that keeps it has ended"
                raise OSError(-number, words, str(command[0]))
            self._line.settimeout(None)
        except BaseException:
            self.close()
            raise
        self.pid = number

    def poll(self) -> int | None:
        """Say how the command ended: its exit code, -N after signal N; None: it, or what it started, still runs."""
        if self._code is None and (kept := self._keeper.poll()) is not None:
            with self._ordering:
                told = self._told() if self._code is None else None
                self._code = int(told) if told and told != keeper.DONE else kept
            if kept < 0:  # it was killed, and has left what it kept
                from tfperf.processes.sweeping import end_all_with

                end_all_with(MARK, self._mark)
        return self._code

    def wait(self, seconds: float | None = None) -> int:
        """Wait until the command has ended, with all that it started.

        Args:
            seconds: of this process's running; None: for ever.

        Returns:
            The exit code, -N after signal N.

        Raises:
            TimeoutError: it has not ended.
        """
        patience = Patience(seconds)
        while (code := self.poll()) is None:
            if not patience.left():
                raise TimeoutError(f"expected an end within {seconds:g} s")
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._keeper.wait(patience.slice())
        return code

    def end(self) -> int:
        """End it and all that it started, and wait until they are gone; the exit code."""
        with contextlib.suppress(OSError):
            self._line.shutdown(socket.SHUT_WR)
        try:
            return self.wait(self._grace + LAST_RESORT)
        except TimeoutError:  # the keeper was made to stand still
            return self.kill()
        except BaseException:  # a second Ctrl-C spares nobody
            self.kill()
            raise

    def interrupt(self) -> None:
        """Interrupt it as Ctrl-C on a terminal does, and do not wait."""
        with contextlib.suppress(OSError):
            self._line.send(keeper.INTERRUPT)

    def tell_to_end(self) -> None:
        """Begin to end it, and do not wait."""
        with contextlib.suppress(OSError):
            self._line.shutdown(socket.SHUT_WR)

    def kill(self) -> int:
        """End it and all that it started without grace, even where its keeper does not hear; the exit code."""
        import psutil

        try:
            left = self._descendants()
        finally:
            self._keeper.kill()
        code = self.wait()  # and with it goes what has the mark
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        return code

    def close(self) -> None:
        """End everything, and close the pipes."""
        try:
            self.end()
        finally:
            for pipe in (self.stdin, self.stdout, self.stderr):
                if pipe is not None:
                    with contextlib.suppress(OSError):  # what was not sent is not worth an error
                        pipe.close()
            self._line.close()

    def __enter__(self) -> Self:
        """Close at the end of the `with` block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def stop(self) -> None:
        """Have it and all that it started stand still; returns when they do."""
        self._order(keeper.STOP)

    def go_on(self) -> None:
        """Have them go on."""
        self._order(keeper.CONTINUE)

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Have it and all that it started stand still meanwhile."""
        self.stop()
        try:
            yield
        finally:
            self.go_on()

    def memory(self, *, whole: bool = True) -> int:
        """Return the bytes of memory that it and all that it started hold now.

        Args:
            whole: what it started counts as well, for which the table of all processes is read.
        """
        import psutil  # the doctor asks for nothing beyond the standard library

        used = 0
        with contextlib.suppress(psutil.Error):
            for process in self._descendants() if whole else [psutil.Process(self.pid)]:
                with contextlib.suppress(psutil.Error):
                    used += process.memory_info().rss
        return used

    def _descendants(self) -> list[Any]:
        """What the keeper runs now, each a `psutil.Process`."""
        import psutil

        if self._keeper.poll() is not None:  # its number may be another's by now
            return []
        with contextlib.suppress(psutil.Error):
            return list(psutil.Process(self._keeper.pid).children(recursive=True))
        return []

    def _order(self, order: bytes) -> None:
        with self._ordering, contextlib.suppress(OSError):  # it has ended
            self._line.send(order)
            if (told := self._told()) is not None and told != keeper.DONE:
                self._code = int(told)

    def _told(self) -> str | None:
        """A line of the keeper; None: it has ended."""
        line = b""
        with contextlib.suppress(ConnectionError):
            while piece := self._line.recv(1):
                if piece == b"\n":
                    return line.decode()
                line += piece
        return None
