"""A process that measures ceilings with one number of threads: TensorFlow cannot change that number once it runs."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import Any, Self

from tfperf.errors import HardwareError
from tfperf.hardware.ceilings import thread_words
from tfperf.hardware.ceilings.part import Order, Part
from tfperf.start_up_noise import START_UP_NOISE

__all__ = ["CeilingProcess"]

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "1"}
"""What TensorFlow only informs of would be taken for the last words of a process that dies."""


class CeilingProcess:
    """`python -m tfperf.hardware.ceilings.worker`; it and all that it started end with this object's `with` block."""

    def __init__(self, order: Order, deadline: float, tell: Callable[[str], None]) -> None:
        """Start it; it loads TensorFlow and compiles, and measures nothing yet.

        Args:
            order: what it is to measure.
            deadline: seconds after which it is ended, whatever it does.
            tell: is told what it does.
        """
        self.threads = order.threads
        self._tell, self._deadline = tell, deadline
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tfperf.hardware.ceilings.worker", order.model_dump_json(), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            text=True,
            env=QUIET | os.environ,
            start_new_session=True,  # Ctrl-C is the parent's, which then ends this
        )
        self._late = False
        self._timer = threading.Timer(deadline, self._end_late)
        self._timer.daemon = True
        self._timer.start()

    def wait_until_ready(self) -> None:
        """Return when it can measure.

        Raises:
            HardwareError: it failed, died, or was not ready in time.
        """
        self._next("ready")

    def measure(self) -> Part:
        """Have it measure.

        Raises:
            HardwareError: it failed, died, or was not done in time.
        """
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has died, which is told when its answer is missing
            print("begin", file=self._process.stdin, flush=True)
        return Part.model_validate_json(json.dumps(self._next("part")))

    def __enter__(self) -> Self:
        """End the process at the end of the `with` block."""
        return self

    def __exit__(self, *_: object) -> None:
        """End it, whatever it does: it has nothing to put in order."""
        self._timer.cancel()
        self._end()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._complaints):
            with contextlib.suppress(OSError):  # what was not sent is not worth an error
                pipe.close()  # type: ignore[union-attr]

    def _next(self, wanted: str) -> Any:
        """What it tells under this name; what it tells before is what it does."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            if wanted in told:
                return told[wanted]
            self._tell(f"{thread_words(self.threads)}: {told['doing']}")
        code = self._process.wait()
        if self._late:
            raise HardwareError(
                f"expected the ceilings to be measured within {self._deadline:g} s; the process was ended"
            )
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        raise HardwareError(f"the process that measures the ceilings {how}: {self._last_words()}")

    def _last_words(self) -> str:
        self._complaints.seek(0)
        lines = [line.strip() for line in self._complaints.read().decode(errors="replace").splitlines()]
        said = [line for line in lines if line and not START_UP_NOISE.search(line)]
        return said[-1][:300] if said else "it said nothing"

    def _end_late(self) -> None:
        self._late = True
        self._end()

    def _end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
