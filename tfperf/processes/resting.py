"""Processes that others wait for: whether they are stopped, or do nothing."""

import contextlib
import time

import psutil

from tfperf.processes.patience import LOOK

__all__ = ["IDLE_LIMIT", "LOOK", "Rest"]

IDLE_LIMIT = 20.0
"""Seconds for which a process may be stopped, or do nothing where it should work, before it is named."""

NOTHING = 0.02
"""Share of a core that a process may use and still do nothing: it looks now and then whether there is work."""


class Rest:
    """For how long a process has been stopped, and has done nothing, as far as it was looked at.

    Attributes:
        stopped: seconds for which it has been stopped, as by SIGSTOP.
        idle: seconds for which it has neither computed nor waited for a disk.
    """

    def __init__(self, number: int, *, with_descendants: bool = False) -> None:
        """Look for the first time.

        Args:
            number: of the process.
            with_descendants: whether what it has started counts as well.

        Raises:
            psutil.NoSuchProcess: there is none.
        """
        self._process = psutil.Process(number)
        self._with_descendants = with_descendants
        self._last, self._used = time.monotonic(), self._usage()[0]
        self.stopped = self.idle = 0.0

    def look(self) -> None:
        """Add the seconds since the last look, at most twice `LOOK`: more are some in which this process stopped."""
        now = time.monotonic()
        passed, self._last = min(now - self._last, 2 * LOOK), now
        used, statuses = self._usage()
        works = used > self._used + NOTHING * passed or psutil.STATUS_DISK_SLEEP in statuses
        self.idle = 0.0 if works else self.idle + passed
        self.stopped = self.stopped + passed if statuses == {psutil.STATUS_STOPPED} else 0.0
        self._used = used

    def _usage(self) -> tuple[float, set[str]]:
        """The seconds of a core used so far, and in what states the processes are; none where they have ended."""
        used, statuses = 0.0, set()
        with contextlib.suppress(psutil.NoSuchProcess):
            descendants = self._process.children(recursive=True) if self._with_descendants else []
            for process in (self._process, *descendants):
                with contextlib.suppress(psutil.NoSuchProcess):
                    used += sum(process.cpu_times()[:2])
                    statuses.add(process.status())
        return used, statuses
