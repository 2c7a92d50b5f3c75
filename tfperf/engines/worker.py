"""The process in which one plan runs: `python -m tfperf.engines.worker`, driven by `process.EngineProcess`.

A request is a line of JSON on standard input, with the name of a method of `Worker` and its arguments; the answer
is a line of JSON on what was standard output. What the engine prints goes to standard error instead.
"""

import ctypes
import itertools
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from tfperf.engines.building import load
from tfperf.engines.checking import check_runner
from tfperf.engines.plan import Plan
from tfperf.engines.runner import Runner
from tfperf.errors import TfperfError
from tfperf.exports.signature import Signature
from tfperf.measure.memory import PeakMemory

__all__ = ["main"]

PR_SET_PDEATHSIG = 1  # of prctl(2)


class Worker:
    """Answers requests about one plan."""

    _runner: Runner

    def __init__(self) -> None:
        self._peak = PeakMemory()
        self._inputs: dict[int, list[NDArray[Any]]] = {}

    def load(self, plan: str, signature: str, folder: str) -> dict[str, Any]:
        """Load what was converted for the plan."""
        began = time.perf_counter()
        chosen = Plan.model_validate_json(plan)
        self._runner = load(Path(folder), Signature.model_validate_json(signature), chosen)
        return self._loaded(time.perf_counter() - began)

    def build(self, plan: str, model: str, signature_name: str | None, seed: int, weights: str) -> dict[str, Any]:
        """Open a model again, for an engine that calls the net itself, and give it the weights it had."""
        began = time.perf_counter()
        chosen = Plan.model_validate_json(plan)
        from tfperf.engines.building import build
        from tfperf.engines.tensorflow_threads import use_threads
        from tfperf.exports.opening import open_model

        use_threads(chosen.threads)  # before the net is made, with which TensorFlow starts
        servable = open_model(model, signature=signature_name, seed=seed)
        if servable.net is not None:
            servable.net.set_weights(_arrays(Path(weights)))
        self._runner = build(servable, chosen)
        return self._loaded(time.perf_counter() - began)

    def check(self, batch: int, inputs: str, reference: str) -> dict[str, Any]:
        """Compare the answers with the reference; the arrays lie in files."""
        self._inputs[batch] = _arrays(Path(inputs))
        began = time.perf_counter()
        self._runner(*self._inputs[batch])
        first_call = time.perf_counter() - began
        agreement = check_runner(self._runner, self._inputs[batch], _arrays(Path(reference)))
        return {"agreement": agreement.model_dump_json(), "first_call_seconds": first_call}

    def timed(self, batch: int, calls: int) -> dict[str, float]:
        """Seconds, and seconds of processors, of so many calls together."""
        run, arrays = self._runner.run, self._inputs[batch]
        loop = itertools.repeat(None, calls)
        cpu, start = time.process_time(), time.perf_counter()
        for _ in loop:
            run(*arrays)
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "cpu_seconds": time.process_time() - cpu}

    def memory(self) -> str:
        """The most memory since the start."""
        return self._peak.read().model_dump_json()

    def _loaded(self, seconds: float) -> dict[str, Any]:
        return {"proof": self._runner.proof, "size": self._runner.size, "load_seconds": seconds}


def main() -> None:
    """Answer until standard input ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # where the parent is killed, in the middle of a call
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    worker = Worker()
    for line in sys.stdin.buffer:
        name, arguments = json.loads(line)
        try:
            answer = {"answer": getattr(worker, name)(**arguments)}
        except (TfperfError, ValueError, OSError) as error:
            answer = {"error": " ".join(str(error).split())}
        except Exception as error:  # whatever an engine raises: it is the answer
            answer = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
        _write(replies, answer)


def _write(replies: BinaryIO, answer: dict[str, Any]) -> None:
    replies.write(json.dumps(answer).encode() + b"\n")
    replies.flush()


def _arrays(file: Path) -> list[NDArray[Any]]:
    with np.load(file, allow_pickle=False) as stored:
        return [stored[str(index)] for index in range(len(stored.files))]


if __name__ == "__main__":
    main()
