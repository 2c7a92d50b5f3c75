"""A process that measures ceilings with one number of threads: TensorFlow cannot change that number once it runs."""

import json
import os
import sys
from collections.abc import Callable
from typing import Any, Self

from tfperf.errors import HardwareError
from tfperf.hardware.ceilings import thread_words
from tfperf.hardware.ceilings.part import Order, Part
from tfperf.processes import PIPE, ChildProcess, Dialogue, LastBytes, Patience
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
            deadline: seconds that it may be waited for, in all.
            tell: is told what it does.
        """
        self.threads = order.threads
        self._tell, self._deadline, self._patience = tell, deadline, Patience(deadline)
        self._process = ChildProcess(
            [sys.executable, "-P", "-m", "tfperf.hardware.ceilings.worker", order.model_dump_json()],
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            environment=QUIET | os.environ,
        )
        self._dialogue = Dialogue(self._process)
        assert self._process.stderr is not None
        self._complaints = LastBytes(self._process.stderr)

    def wait_until_ready(self) -> None:
        """Return when it can measure.

        Raises:
            HardwareError: it failed, died, or was not ready in time.
        """
        self._next("ready", self._listen)

    def measure(self) -> Part:
        """Have it measure.

        Raises:
            HardwareError: it failed, died, or was not done in time.
        """
        told = self._next("part", lambda: self._dialogue.ask("begin", self._patience))
        return Part.model_validate_json(json.dumps(told))  # which takes a list for a tuple, where JSON has no other

    def __enter__(self) -> Self:
        """End the process at the end of the `with` block."""
        return self

    def __exit__(self, *_: object) -> None:
        """End it, whatever it does: it has nothing to put in order."""
        self._process.close()

    def _next(self, wanted: str, told: Callable[[], Any]) -> Any:
        """What it tells under this name; what it tells before is what it does."""
        try:
            while wanted not in (words := told()):
                self._tell(f"{thread_words(self.threads)}: {words['doing']}")
                told = self._listen
            return words[wanted]
        except TimeoutError as error:
            self._process.end()
            raise HardwareError(
                f"expected the ceilings to be measured within {self._deadline:g} s; the process was ended"
            ) from error
        except EOFError as error:
            code = self._process.end()
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            raise HardwareError(f"the process that measures the ceilings {how}: {self._last_words()}") from error

    def _listen(self) -> Any:
        return self._dialogue.listen(self._patience)

    def _last_words(self) -> str:
        lines = [line.strip() for line in self._complaints.text().splitlines()]
        said = [line for line in lines if line and not START_UP_NOISE.search(line)]
        return said[-1][:300] if said else "it said nothing"
