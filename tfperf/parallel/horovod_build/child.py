"""A long command whose output is followed line by line, and which never outlives its caller."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import BinaryIO

from tfperf.processes import PIPE, STDOUT, ChildProcess

__all__ = ["follow"]

GRACE_S = 10.0
"""Seconds that a command has to end by itself after SIGINT, before it is killed."""


def follow(
    command: Sequence[str], environment: Mapping[str, str], log: BinaryIO, on_line: Callable[[str], object]
) -> int:
    """Run a command to its end and return its exit code. What it and its children say goes to `log` and `on_line`.

    If anything interrupts the waiting, Ctrl-C among it, the command is interrupted too, on which pip restores what it
    was about to replace; what is left of it is killed.
    """
    with ChildProcess(command, stdout=PIPE, stderr=STDOUT, environment=environment) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                log.write(line)
                on_line(line.decode(errors="replace").rstrip())
            return process.wait()
        except BaseException:
            process.interrupt()
            with contextlib.suppress(TimeoutError):
                process.wait(GRACE_S)
            raise
