"""Ends processes that are known by a variable of their environment alone, whoever has started them."""

import contextlib
import os
import signal
import time

import psutil

from tfperf.processes.patience import SLICE, Patience

__all__ = ["end_all_with"]

DEADLINE = 10.0
"""Seconds for all to be gone; one that hangs in the system is not waited for longer."""


def end_all_with(variable: str, value: str) -> None:
    """Kill all processes but this one in whose environment a variable has a value, and wait until they are gone.

    Those that they start meanwhile end too.
    """
    patience = Patience(DEADLINE)
    while sum(_end(process, variable, value) for process in psutil.process_iter()) and patience.left():
        time.sleep(SLICE / 10)


def _end(process: psutil.Process, variable: str, value: str) -> bool:
    """Kill a process if it is one of them; whether another look at it is needed."""
    with contextlib.suppress(psutil.Error, OSError):
        if process.status() == psutil.STATUS_ZOMBIE or process.pid == os.getpid():
            return False
        if environment := process.environ():
            if environment.get(variable) != value:
                return False
            os.kill(process.pid, signal.SIGKILL)  # psutil refuses where it knew another by this number
            return True
        # One that takes the place of another has neither environment nor arguments; those of the system have no file.
        return not process.cmdline() and bool(process.exe())
    return False
