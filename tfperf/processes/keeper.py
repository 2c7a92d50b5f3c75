"""The process between tfperf and a command that it starts: runs the command, and leaves nothing of it behind.

    python -I -S keeper.py LINE GRACE COMMAND [ARGUMENT ...]
    python -m tfperf.processes.keeper 0 GRACE COMMAND [ARGUMENT ...]

LINE is the number of a file descriptor. When its other end closes, because tfperf wants the end or was itself killed,
on this machine or at the other end of ssh, the command and all that descends from it get SIGTERM, and after GRACE
seconds SIGKILL; with a GRACE of 0 SIGKILL at once. So does what a command leaves running when it ends. The keeper's
exit code is the command's, 128 + N after signal N, and 126 or 127 when it cannot be started, as a shell has it.

A LINE other than 0 is a socket, over which tfperf is told what happens, and orders; `ChildProcess` is at its end.
With a LINE of 0 the command reads nothing.

It needs the standard library alone, and little of that: it stands before everything that tfperf starts.
"""

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence

__all__ = ["CONTINUE", "DONE", "INTERRUPT", "SHARED_GROUP", "STOP", "keep"]

STOP, CONTINUE, INTERRUPT = b"s", b"c", b"i"
"""Orders: have all stand still; have them go on; interrupt the command as Ctrl-C does. The first two are answered when
that is done."""

DONE = "done"
"""The answer; other lines are the number of the command's process at first, or a negative error number, and at the end
the exit code, -N after signal N."""

SHARED_GROUP = "TFPERF_SHARED_GROUP"
"""Environment variable with which the command stays in the process group of its terminal, and takes Ctrl-C from it."""

ORPHANS_GRACE = 1.0
"""Seconds that the descendants of a command have after its end; helpers that clean up after it notice it at once."""

PROCESSES = "/proc"
"""Where Linux tells of all processes."""

LOOK = 1.0
"""Seconds between two looks whether tfperf is there: something that it started may hold its end of the line open."""

_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h


class _Children:
    """All that descends from this process, orphans included: this process is the one that they fall back to."""

    def __init__(self, *, ignores_keys: bool) -> None:
        self._statuses: dict[int, int] = {}
        self._stopped: set[int] = set()
        self._first = 0
        self.news, news_sink = os.pipe()
        os.set_blocking(news_sink, False)
        for number in (signal.SIGCHLD, *_ENDING):
            signal.signal(number, lambda *_: None)  # the byte in the pipe is what counts
        if ignores_keys:  # the command takes Ctrl-C itself
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.set_wakeup_fd(news_sink)
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)

    def start(self, command: Sequence[str], *, own_group: bool, reads: bool) -> int:
        """Start a command, which is killed with this process; its process id.

        Raises:
            OSError: it cannot be started.
        """
        failure, failure_sink = os.pipe()  # closes when the command has taken the place of its process
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)  # until the command takes them as it will
        pid = os.fork()
        if pid == 0:
            try:
                _become(command, own_group=own_group, reads=reads)
            except OSError as error:
                os.write(failure_sink, str(error.errno).encode())
            finally:
                os._exit(127)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._first = -pid if own_group else pid  # a negative number is that of a group
        os.close(failure_sink)
        with os.fdopen(failure, "rb") as pipe:
            if code := pipe.read():
                raise OSError(int(code), os.strerror(int(code)))
        return pid

    def status(self, pid: int) -> int | None:
        """How a child ended; None while it runs."""
        self.reap()
        return self._statuses.get(pid)

    def stop(self) -> None:
        """Have all stand still, also those that are started meanwhile; returns when they do, or hang in the system."""
        until = time.monotonic() + LOOK
        while moving := {process for process, state in self._running().items() if state not in b"Tt"}:
            _send(signal.SIGSTOP, moving - self._stopped)
            self._stopped |= moving
            if time.monotonic() > until:
                return
            time.sleep(0.0002)

    def go_on(self) -> None:
        """Have all go on that stand still."""
        _send(signal.SIGCONT, self._stopped & set(self._running()))
        self._stopped = set()

    def end(self, grace: float) -> None:
        """Ask all to end, kill those that do not in time, and return when the last one is gone."""
        asked: set[int] = set()
        deadline = time.monotonic() + grace
        while self.reap():
            running = set(self._running())
            if grace == 0 or time.monotonic() > deadline:
                _send(signal.SIGKILL, running)
            else:
                _send(signal.SIGTERM, running - asked)
                _send(signal.SIGCONT, running - asked)  # what stands still takes no other signal
            asked |= running
            if select.select([self.news], [], [], 0.1 if grace else 0.01)[0]:
                os.read(self.news, 4096)

    def _running(self) -> dict[int, bytes]:
        """All that descends from this process, and its states; where the system does not tell, the command's group."""
        if os.path.isdir(PROCESSES):  # noqa: PTH112  # no more imports
            return dict(_descendants())
        return {self._first: b"T" if self._stopped else b"R"}

    def reap(self) -> bool:
        """Take note of the children that have ended; whether any is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            self._statuses[pid] = status


def keep(line: int, grace: float, command: Sequence[str]) -> int:
    """Run a command until it ends or is to end, and end all that descends from it; the exit code."""
    own_group, tells = os.environ.pop(SHARED_GROUP, None) is None, line != 0
    parent = os.getppid()
    children = _Children(ignores_keys=not own_group)
    os.set_inheritable(line, False)
    try:
        child = children.start(command, own_group=own_group, reads=tells)
    except OSError as error:
        if tells:
            _tell(line, -(error.errno or 1))
        else:
            print(f"tfperf launch: cannot run {command[0]!r}: {error.strerror}", file=sys.stderr)
        return 127 if isinstance(error, FileNotFoundError) else 126
    _let_go(range(3) if tells else range(1, 3))
    if tells:
        _tell(line, child)
    told_to_end = False
    while children.status(child) is None and not told_to_end:
        ready = select.select([children.news, line], [], [], LOOK)[0]
        if children.news in ready:
            told_to_end = bool(set(os.read(children.news, 4096)) & set(_ENDING))
        if line in ready:
            order = _order(line)
            told_to_end |= order == b""
            if order in (STOP, CONTINUE):
                children.stop() if order == STOP else children.go_on()
                _tell(line, DONE)
            if order == INTERRUPT:
                with contextlib.suppress(OSError):
                    os.killpg(child, signal.SIGINT) if own_group else os.kill(child, signal.SIGINT)
        told_to_end |= tells and os.getppid() != parent
    children.end(grace if told_to_end else min(grace, ORPHANS_GRACE))
    code = os.waitstatus_to_exitcode(children.status(child) or 0)
    if tells:
        _tell(line, code)
    return code if code >= 0 else 128 - code


def _become(command: Sequence[str], *, own_group: bool, reads: bool) -> None:
    """Make this process the command."""
    if own_group:
        os.setpgid(0, 0)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for number in (*_ENDING, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python ignores the latter two, a shell's background job SIGINT
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
    if not reads:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.execvp(command[0], list(command))  # noqa: S606  # the command of the caller


def _let_go(pipes: Iterable[int]) -> None:
    """Leave pipes to the command: they close when it closes them."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for pipe in pipes:
        os.dup2(nowhere, pipe)
    os.close(nowhere)


def _descendants() -> Iterator[tuple[int, bytes]]:
    """What descends from this process and runs, by number, and the letter of its state (proc(5))."""
    children: dict[int, list[tuple[int, bytes]]] = {}
    for entry in os.listdir(PROCESSES):  # noqa: PTH208  # no more imports
        if entry.isdigit():
            with contextlib.suppress(OSError), open(f"{PROCESSES}/{entry}/stat", "rb") as file:  # noqa: PTH123
                state, parent = file.read().rpartition(b")")[2].split()[:2]
                if state not in b"ZX":
                    children.setdefault(int(parent), []).append((int(entry), state))
    left = [os.getpid()]
    while left:
        below = children.get(left.pop(), [])
        yield from below
        left += [process for process, _ in below]


def _send(number: signal.Signals, processes: set[int]) -> None:
    for process in processes:
        with contextlib.suppress(OSError):
            os.kill(process, number)


def _order(line: int) -> bytes:
    try:
        return os.read(line, 1)
    except OSError:
        return b""


def _tell(line: int, words: object) -> None:
    with contextlib.suppress(OSError):  # tfperf is gone
        os.write(line, f"{words}\n".encode())


def _prctl(option: int, value: int) -> None:
    """Linux's prctl(2); best effort, as commands run without it as well."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    os._exit(keep(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))  # at once: others wait for this
