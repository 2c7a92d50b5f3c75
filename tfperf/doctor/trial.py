"""`probe.py` in a process of its own, with a deadline: a crash or a hang of TensorFlow is a finding."""

import contextlib
import dataclasses
import json
import os
import signal
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from tfperf.doctor import probe
from tfperf.doctor.finding import one_line
from tfperf.doctor.probe import STEPS
from tfperf.processes import PIPE, ChildProcess, LastBytes, Patience

__all__ = ["DEADLINE_S", "Report", "Trial"]

DEADLINE_S = 120.0
"""Seconds that TensorFlow may take. It needs 3 to 8; from a cold network disk on a busy machine, many times that."""

_ENVIRONMENT = {
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",  # else it takes all memory of a GPU, which others may be using
}

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
        self._process: ChildProcess | None = None
        self._failure = ""

    def __enter__(self) -> "Trial":
        self._patience = Patience(self._deadline)
        try:
            self._process = ChildProcess(self._command, stdout=PIPE, stderr=PIPE, environment=_ENVIRONMENT | os.environ)
        except OSError as error:
            self._failure = f"no process can be started: {error}"
            return self
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._printed, self._said = LastBytes(self._process.stdout), LastBytes(self._process.stderr)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.close()

    def report(self) -> Report:
        """Wait for the end of the process, or for the deadline, and say what came of it."""
        process = self._process
        if process is None:
            return Report({}, self._failure)
        try:
            code = process.wait(self._patience.left())
        except TimeoutError:
            process.end()
            words = f"it did not finish within {self._deadline:g} s and was ended"
            return Report(_steps(self._printed.text()), words)
        return Report(_steps(self._printed.text()), _words_of_the_end(code, self._said.text()))


def _words_of_the_end(code: int, said: str) -> str:
    """How a process ended that had this exit code, and said this on standard error; "" where it ended well."""
    if code == 0:
        return ""
    how = f"ended with exit code {code}" if code > 0 else f"was ended by {_signal_name(-code)}"
    reason = {
        -signal.SIGILL: ", an illegal instruction: this build wants instructions that the CPU lacks",
        -signal.SIGKILL: ", as the kernel does where memory runs out",
    }.get(code, "")
    lines = [line for line in said.splitlines() if line.strip()]
    last = f"; its last words: {one_line(lines[-1])[:_WORDS]}" if lines else ""
    return f"its process {how}{reason}{last}"


def _steps(printed: str) -> dict[str, dict[str, Any]]:
    """The steps that a probe reported; a line that is no report is passed over."""
    steps = {}
    for line in printed.splitlines():
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
            found = json.loads(line)
            steps[str(found.pop("step"))] = found
    return steps


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
