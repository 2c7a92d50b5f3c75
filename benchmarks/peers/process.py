"""A peer in a process of its own."""

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.catalog import ROOT, Peer
from tfperf.errors import EngineError
from tfperf.measure.memory import MemoryPeak

__all__ = ["PeerProcess", "PeerWork"]

DEADLINE = 600.0
"""Seconds for one answer; torch.compile takes one for a large net, and several on a busy machine."""

GRACE = 5.0
"""Seconds for a process whose output has ended to end."""


class PeerProcess:
    """Runs one peer, in a process that ends with this object's `with` block, whatever happens in either."""

    def __init__(self, peer: Peer, *, deadline: float = DEADLINE) -> None:
        """Start the process; nothing is loaded yet.

        Args:
            deadline: seconds for each answer, after which the process is ended.
        """
        self.peer, self._deadline = peer, deadline
        self._noise = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `close`
        self._process = subprocess.Popen(
            [peer.python, "-P", "-m", "benchmarks.peers.worker", peer.module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._noise,
            env=os.environ | peer.environment | {"PYTHONPATH": str(ROOT)},
            start_new_session=True,  # Ctrl-C is the parent's, which then ends this
        )

    @property
    def pid(self) -> int:
        """The process number; the process leads a group of its own."""
        return self._process.pid

    def load(self, net: str, folder: Path) -> str:
        """Make the peer ready to call; what it is in words.

        Args:
            folder: has weights.npz, inputs.npz and what the peer's converter wrote.

        Raises:
            EngineError: the peer cannot, or the process died or did not answer.
        """
        return str(self.ask("load", net=net, folder=str(folder), way=self.peer.way, precision=self.peer.precision))

    def answers(self) -> NDArray[Any]:
        """Its answers to all inputs, (inputs, ...).

        Raises:
            EngineError: the peer cannot, or the process died or did not answer.
        """
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder, "answers.npy")
            self.ask("answer", target=str(target))
            answers: NDArray[Any] = np.load(target, allow_pickle=False)
            return answers

    def ask(self, name: str, **arguments: Any) -> Any:
        """The answer to a request: a method of `worker.Worker`, with its arguments.

        Raises:
            EngineError: the peer cannot, or the process died or did not answer.
        """
        request = json.dumps([name, arguments]).encode() + b"\n"
        try:
            self._process.stdin.write(request)  # type: ignore[union-attr]
            self._process.stdin.flush()  # type: ignore[union-attr]
        except OSError as error:
            raise EngineError(self._how_it_died()) from error
        answer = json.loads(self._read_line())
        if "error" in answer:
            raise EngineError(f"{self.peer.name}: {answer['error']}")
        return answer["answer"]

    def close(self) -> None:
        """End the process and all that it started, at once: it has nothing to put in order."""
        self._kill()
        self._process.wait()
        with contextlib.suppress(OSError):  # what was not sent is not worth an error
            self._process.stdin.close()  # type: ignore[union-attr]
        self._process.stdout.close()  # type: ignore[union-attr]
        self._noise.close()

    def rest(self) -> None:
        """Stand still; it cannot be asked until `wake`."""
        self._signal(signal.SIGSTOP)

    def wake(self) -> None:
        """Go on."""
        self._signal(signal.SIGCONT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read_line(self) -> bytes:
        """One answer; the pipe is read as bytes come, so that a process which hangs in the middle is noticed too."""
        pipe = self._process.stdout.fileno()  # type: ignore[union-attr]
        until = time.monotonic() + self._deadline
        line = b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([pipe], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                self._kill()  # it would answer the next question with what it was asked now
                raise EngineError(f"{self.peer.name}: no answer within {self._deadline:g} s; its process was ended")
            if not (piece := os.read(pipe, 65536)):
                raise EngineError(self._how_it_died())
            line += piece
        return line

    def _kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has died, as who asks it learns
            os.killpg(self._process.pid, number)

    def _how_it_died(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE)
        code = self._process.returncode
        how = f"was killed by {signal.Signals(-code).name}" if code and code < 0 else f"ended with exit code {code}"
        self._noise.seek(0)
        lines = self._noise.read().decode(errors="replace").strip().splitlines()
        last = f": {lines[-1][:300]}" if lines else ""
        return f"{self.peer.name}: its process {how}{last}"


class PeerWork:
    """One call of a peer, as `tfperf.measure.compare` takes work that times itself."""

    def __init__(self, process: PeerProcess) -> None:
        self._process = process
        self._seconds = self._cpu_seconds = 0.0

    def __call__(self) -> None:
        """Call it once."""
        self.timed(1)

    def timed(self, calls: int) -> float:
        """Seconds of so many calls together, as the process has measured them."""
        told = self._process.ask("timed", calls=calls)
        self._seconds += told["seconds"]
        self._cpu_seconds += told["cpu_seconds"]
        return float(told["seconds"])

    def memory(self) -> MemoryPeak:
        """The most memory of the process, with the framework in it."""
        peak = int(self._process.ask("memory"))
        return MemoryPeak(resident=peak, resident_before=0, device=None, of_whole_process=True)

    @property
    def cores_used(self) -> float:
        """Processors busy on average, in all calls that were timed."""
        return self._cpu_seconds / self._seconds if self._seconds else 0.0
