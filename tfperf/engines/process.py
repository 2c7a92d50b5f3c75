"""A plan in a process of its own."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from tfperf.engines.plan import Plan
from tfperf.errors import EngineError
from tfperf.exports.signature import Signature
from tfperf.measure.agreement import Agreement
from tfperf.measure.memory import MemoryPeak

__all__ = ["Checked", "EngineProcess", "Loaded", "Work", "store_arrays"]

DEADLINE = 600.0
"""Seconds for one answer."""

GRACE = 5.0
"""Seconds for a process whose output has ended to end."""


class Loaded(NamedTuple):
    """What a process says when the plan is made real."""

    proof: dict[str, str]
    size: int | None
    """Bytes on disk of what the engine loads."""
    load_seconds: float
    """For importing the engine and loading the net."""


class Checked(NamedTuple):
    """What a process says of its answers."""

    agreement: Agreement
    first_call_seconds: float


class EngineProcess:
    """Runs one plan, in a process that ends with this object's `with` block, whatever happens in either."""

    def __init__(self, plan: Plan, *, deadline: float = DEADLINE) -> None:
        """Start the process; nothing is loaded yet.

        Args:
            deadline: seconds for each answer, after which the process is ended.
        """
        self.plan = plan
        self._deadline = deadline
        self._noise = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `close`
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tfperf.engines.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._noise,
            start_new_session=True,  # Ctrl-C is the parent's, which then ends this
        )

    def load(self, folder: Path, signature: Signature) -> Loaded:
        """Load what was converted for the plan.

        Raises:
            EngineError: the engine cannot, or the process died or did not answer.
        """
        return Loaded(
            **self._ask(
                "load", plan=self.plan.model_dump_json(), signature=signature.model_dump_json(), folder=str(folder)
            )
        )

    def build(self, model: str, signature_name: str | None, seed: int, weights: Path) -> Loaded:
        """Open the model there, and call the net itself.

        Args:
            model, signature_name, seed: as `tfperf.exports.open_model` takes them.
            weights: file of `store_arrays`.

        Raises:
            EngineError: the engine cannot, or the process died or did not answer.
        """
        plan = self.plan.model_dump_json()
        return Loaded(
            **self._ask("build", plan=plan, model=model, signature_name=signature_name, seed=seed, weights=str(weights))
        )

    def check(self, batch: int, inputs: Path, reference: Path) -> Checked:
        """Compare its answers with the reference's, both in files of `store_arrays`.

        Raises:
            EngineError: the answers are wrong, or the process died or did not answer.
        """
        told = self._ask("check", batch=batch, inputs=str(inputs), reference=str(reference))
        return Checked(Agreement.model_validate_json(told["agreement"]), told["first_call_seconds"])

    def work(self, batch: int) -> "Work":
        """The call with a batch that was checked, to be measured."""
        return Work(self, batch)

    def close(self) -> None:
        """End the process and all that it started, at once: it has nothing to put in order."""
        self._kill()
        self._process.wait()
        with contextlib.suppress(OSError):  # what was not sent is not worth an error
            self._process.stdin.close()  # type: ignore[union-attr]
        self._process.stdout.close()  # type: ignore[union-attr]
        self._noise.close()

    def __enter__(self) -> Self:
        """Close at the end of the `with` block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def _ask(self, name: str, **arguments: Any) -> Any:
        request = json.dumps([name, arguments]).encode() + b"\n"
        try:
            self._process.stdin.write(request)  # type: ignore[union-attr]
            self._process.stdin.flush()  # type: ignore[union-attr]
        except OSError as error:
            raise EngineError(self._how_it_died()) from error
        answer = json.loads(self._read_line())
        if "error" in answer:
            raise EngineError(answer["error"])
        return answer["answer"]

    def _read_line(self) -> bytes:
        """One answer; the pipe is read as bytes come, so that a process which hangs in the middle is noticed too."""
        pipe = self._process.stdout.fileno()  # type: ignore[union-attr]
        until = time.monotonic() + self._deadline
        line = b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([pipe], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                self._kill()  # it would answer the next question with what it was asked now
                raise EngineError(f"{self.plan}: no answer within {self._deadline:g} s; its process was ended")
            if not (piece := os.read(pipe, 65536)):
                raise EngineError(self._how_it_died())
            line += piece
        return line

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _how_it_died(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE)
        code = self._process.returncode
        how = f"was killed by {signal.Signals(-code).name}" if code and code < 0 else f"ended with exit code {code}"
        self._noise.seek(0)
        lines = self._noise.read().decode(errors="replace").strip().splitlines()
        last = f": {lines[-1][:300]}" if lines else ""
        return f"{self.plan}: its process {how}{last}"


class Work:
    """One plan with one batch, as `tfperf.measure.compare` takes work that times itself.

    Attributes:
        failure: why it can no longer be asked; empty: it can.
    """

    def __init__(self, process: EngineProcess, batch: int) -> None:
        self._process, self._batch, self.failure = process, batch, ""
        self._seconds = self._cpu_seconds = 0.0

    def __call__(self) -> None:
        """Call it once."""
        self.timed(1)

    def timed(self, calls: int) -> float:
        """Seconds of so many calls together, as the process has measured them."""
        told = self._ask("timed", batch=self._batch, calls=calls)
        self._seconds += told["seconds"]
        self._cpu_seconds += told["cpu_seconds"]
        return float(told["seconds"])

    def memory(self) -> MemoryPeak:
        """The most memory of the process."""
        return MemoryPeak.model_validate_json(self._ask("memory"))

    @property
    def cores_used(self) -> float:
        """Processors busy on average, in all calls that were timed."""
        return self._cpu_seconds / self._seconds if self._seconds else 0.0

    def _ask(self, name: str, **arguments: Any) -> Any:
        try:
            return self._process._ask(name, **arguments)
        except EngineError as error:
            self.failure = str(error)
            raise


def store_arrays(file: Path, arrays: Sequence[NDArray[Any]]) -> Path:
    """Write arrays, in order, for a process to read."""
    with file.open("wb") as target:
        np.savez(target, **{str(index): array for index, array in enumerate(arrays)})  # type: ignore[arg-type]
    return file
