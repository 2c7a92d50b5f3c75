"""A long command whose output is followed line by line, and which never outlives its caller."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import BinaryIO

__all__ = ["follow"]

GRACE_S = 10.0
"""Seconds that a command has to end by itself after SIGINT, before it is killed."""


def follow(
    command: Sequence[str], environment: Mapping[str, str], log: BinaryIO, on_line: Callable[[str], object]
) -> int:
    """Run a command to its end and return its exit code. What it and its children say goes to `log` and `on_line`.

    It is the leader of a process group of its own. If anything interrupts the waiting, Ctrl-C among it, the
    group gets SIGINT, on which pip restores what it was about to replace; what is left of it is killed.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=dict(environment),
        start_new_session=True,
    )
    assert process.stdout is not None  # it is a pipe
    with process.stdout as lines:  # open to the end: what pip says while it restores must not break it
        try:
            for line in lines:
                log.write(line)
                on_line(line.decode(errors="replace").rstrip())
            return process.wait()
        finally:
            if process.poll() is None:
                _end(process)


def _end(process: "subprocess.Popen[bytes]") -> None:
    try:
        os.killpg(process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
    finally:  # a second Ctrl-C does not spare them
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        _wait_for_group(process.pid)


def _wait_for_group(number: int) -> None:
    """Wait until the last of a killed group is gone, so that none of them writes where somebody cleans up."""
    patience = time.monotonic() + GRACE_S
    while time.monotonic() < patience:
        try:
            os.killpg(number, 0)
        except (ProcessLookupError, PermissionError):  # macOS says the latter of zombies
            return
        time.sleep(0.02)
