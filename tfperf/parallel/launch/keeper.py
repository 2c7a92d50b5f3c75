"""The process between the launcher and a rank: runs it, and leaves nothing of it behind.

    python -m tfperf.parallel.launch.keeper COMMAND [ARGUMENT ...]

Its standard input is the launcher's hold on the rank. When that closes, because the launcher wants the end or
was itself killed, on this machine or at the other end of ssh, the rank and all that descends from it get SIGTERM,
and after a grace SIGKILL. So does what a rank leaves running when it ends. The keeper's exit code is the rank's,
128 + N after signal N, and 126 or 127 when the command cannot be started, as a shell has it.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

import psutil

__all__ = ["keep"]

GRACE = 5.0
"""Seconds that a rank has to end by itself after SIGTERM."""

ORPHANS_GRACE = 1.0
"""Seconds that the descendants of a rank have after its end; helpers that clean up after it notice that end at once."""

_LIFELINE = 0  # standard input
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h


class _Children:
    """All that descends from this process, orphans included: this process is the one that they fall back to."""

    def __init__(self) -> None:
        self._statuses: dict[int, int] = {}
        self._news, news_sink = os.pipe()
        os.set_blocking(news_sink, False)
        for number in (signal.SIGCHLD, *_ENDING):
            signal.signal(number, lambda *_: None)  # the byte in the pipe is what counts
        signal.set_wakeup_fd(news_sink)
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)

    def start(self, command: Sequence[str]) -> int:
        """Start a command, which is killed with this process; its process id."""
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, preexec_fn=lambda: _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        )
        process.returncode = 0  # it is waited for here: as it is deleted, Popen would take the status away
        return process.pid

    def status(self, pid: int) -> int | None:
        """How a child ended; None while it runs."""
        self._reap()
        return self._statuses.get(pid)

    def wait_for_news(self, timeout: float | None = None, *, lifeline: bool = False) -> bool:
        """Wait until a child ends; True when this process is to end: it was told to, or its lifeline is closed."""
        watched = [self._news, _LIFELINE] if lifeline else [self._news]
        ready, _, _ = select.select(watched, [], [], timeout)
        told = set(os.read(self._news, 4096)) if self._news in ready else set()
        return _LIFELINE in ready or bool(told & set(_ENDING))

    def end(self, grace: float) -> None:
        """Ask all to end, kill those that do not in time, and return when the last one is gone."""
        asked: set[psutil.Process] = set()
        deadline = time.monotonic() + grace
        while self._reap():
            late = time.monotonic() > deadline
            running = set(psutil.Process().children(recursive=True))
            for process in running if late else running - asked:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill() if late else process.terminate()
            asked |= running
            self.wait_for_news(0.1)

    def _reap(self) -> bool:
        """Take note of the children that have ended; whether any is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            self._statuses[pid] = status


def keep(command: Sequence[str]) -> int:
    """Run a command until it ends or is to end, and end all that descends from it; the exit code."""
    children = _Children()
    try:
        rank = children.start(command)
    except OSError as error:
        print(f"tfperf launch: cannot run {command[0]!r}: {error.strerror}", file=sys.stderr)
        return 127 if isinstance(error, FileNotFoundError) else 126
    told_to_end = False
    while children.status(rank) is None and not told_to_end:
        told_to_end = children.wait_for_news(lifeline=True)
    children.end(GRACE if told_to_end else ORPHANS_GRACE)
    code = os.waitstatus_to_exitcode(children.status(rank) or 0)
    return code if code >= 0 else 128 - code


def _prctl(option: int, value: int) -> None:
    """Linux's prctl(2); best effort, as the ranks run without it as well."""
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    os._exit(keep(sys.argv[1:]))  # at once: the others wait for this
