"""Command lines: those that a person is told, and those that an examination asks."""

import os
import shlex
import shutil
import sys

from tfperf.processes import run

__all__ = ["answer", "apt_install", "own_command", "pip_install"]

ANSWER_S = 10.0
"""Seconds after which a tool that was asked for its version is given up."""


def own_command(tool: str, *arguments: str) -> str:
    """A line to paste into a shell that runs `pip` or `tfperf` of this very Python, also outside its environment."""
    folder = os.path.dirname(sys.executable)  # noqa: PTH120  # not resolved: a venv's python is a link out of it
    found = shutil.which(tool)
    is_ours = found is not None and os.path.dirname(os.path.abspath(found)) == folder  # noqa: PTH100, PTH120
    start = [tool] if is_ours else [sys.executable or "python3", "-m", tool]
    return shlex.join([*start, *arguments])


def pip_install(*requirements: str) -> str:
    """The line that installs these requirements for this Python."""
    return own_command("pip", "install", *requirements)


def apt_install(*packages: str) -> str:
    """The line that installs packages of Debian or Ubuntu; "" on other systems."""
    if shutil.which("apt-get") is None:
        return ""
    return shlex.join([*(["sudo"] if os.geteuid() else []), "apt-get", "install", *packages])


def answer(*command: str, timeout: float = ANSWER_S) -> str | None:
    """What a tool prints on standard output and error; None where it is not there, fails or takes too long."""
    path = shutil.which(command[0])
    if path is None:
        return None
    try:
        done = run([path, *command[1:]], deadline=timeout, merged=True, environment={**os.environ, "LC_ALL": "C"})
    except OSError:
        return None
    return done.output.strip() if done.code == 0 else None
