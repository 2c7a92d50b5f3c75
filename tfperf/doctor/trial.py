"""`probe.py` in a process of its own, with a deadline: a crash or a hang of TensorFlow is a finding."""

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from tfperf.doctor import probe
from tfperf.doctor.finding import one_line
from tfperf.doctor.probe import STEPS

__all__ = ["DEADLINE_S", "Report", "Trial"]

DEADLINE_S = 120.0
"""Seconds that TensorFlow may take. It needs 3 to 8; from a cold network disk on a busy machine, many times that."""

_ENVIRONMENT = {
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",  # else it takes all memory of a GPU, which others may be using
}

_GRACE_S = 5.0

_WORDS = 300
"""Characters of a dead process's last words that are told."""


@dataclasses.dataclass(frozen=True)
class Report:
    """What the probe had to say.

    Attributes:
        steps: step -> what was found; a step that was not finished is not there.
        end: how the process ended, in words; "" where it ended well.
    """

    steps: dict[str, dict[str, Any]]
    end: str = ""

    def error(self, step: str) -> str:
        """Why a step gave no result, in words; "" where it gave one."""
        if step in self.steps:
            return str(self.steps[step].get("error", ""))
        last = self._last_begun()
        return (self.end or "its process said nothing of it") if step == last else f"not tried, because {last} failed"

    def was_tried(self, step: str) -> bool:
        """Whether the step was begun: it gave a result or an error, or the process ended in it."""
        return step in self.steps or step == self._last_begun()

    def _last_begun(self) -> str:
        """The step in which the process ended; without TensorFlow the others are not begun."""
        if "error" in self.steps.get("tensorflow", {}):
            return "tensorflow"
        return next((step for step in STEPS if step not in self.steps), "")


class Trial:
    """The probe while it runs: started by `with`, ended with it, whatever happens.

    Args:
        command: what to run instead of this Python with `probe.py`.
        deadline: seconds from the start after which the process is killed.
    """

    def __init__(self, command: Sequence[str] | None = None, deadline: float = DEADLINE_S) -> None:
        # -P: the modules beside the script, and in the working folder, must not be taken for the packages
        own = [sys.executable, "-P", probe.__file__, str(int(deadline) + 10)]
        self._command = own if command is None else list(command)
        self._deadline = deadline
        self._process: subprocess.Popen[bytes] | None = None
        self._failure = ""

    def __enter__(self) -> "Trial":
        self._until = time.monotonic() + self._deadline
        try:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=_ENVIRONMENT | os.environ,
                start_new_session=True,  # what it starts is in its process group, and ends with it
            )
        except OSError as error:
            self._failure = f"no process can be started: {error}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            _kill(self._process)
            for pipe in (self._process.stdout, self._process.stderr):
                if pipe is not None:
                    pipe.close()

    def report(self) -> Report:
        """Wait for the end of the process, or for the deadline, and say what came of it."""
        process = self._process
        if process is None:
            return Report({}, self._failure)
        try:
            printed, said = process.communicate(timeout=max(0.0, self._until - time.monotonic()))
        except subprocess.TimeoutExpired:
            _kill(process)
            printed = _rest_of(process)
            return Report(_steps(printed), f"it did not finish within {self._deadline:g} s and was ended")
        return Report(_steps(printed), _words_of_the_end(process.returncode, said))


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """Kill the process group, if its leader was not seen to end."""
    if process.returncode is not None:
        return  # reaped, so the number of the group may be another's now
    os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):  # a hanging driver can keep even a killed process
        process.wait(_GRACE_S)


def _rest_of(process: "subprocess.Popen[bytes]") -> bytes:
    """All that a killed process had printed."""
    try:
        return process.communicate(timeout=_GRACE_S)[0]
    except subprocess.TimeoutExpired as error:  # something that escaped from its group still holds the pipe
        return bytes(error.output or b"")


def _words_of_the_end(code: int, said: bytes) -> str:
    """How a process ended that had this exit code, and said this on standard error; "" where it ended well."""
    if code == 0:
        return ""
    how = f"ended with exit code {code}" if code > 0 else f"was ended by {_signal_name(-code)}"
    reason = {
        -signal.SIGILL: ", an illegal instruction: this build wants instructions that the CPU lacks",
        -signal.SIGKILL: ", as the kernel does where memory runs out",
    }.get(code, "")
    lines = [line for line in said[-4096:].decode(errors="replace").splitlines() if line.strip()]
    last = f"; its last words: {one_line(lines[-1])[:_WORDS]}" if lines else ""
    return f"its process {how}{reason}{last}"


def _steps(printed: bytes) -> dict[str, dict[str, Any]]:
    """The steps that a probe reported; a line that is no report is passed over."""
    steps = {}
    for line in printed.decode(errors="replace").splitlines():
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
            found = json.loads(line)
            steps[str(found.pop("step"))] = found
    return steps


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
