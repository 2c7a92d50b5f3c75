"""The process in which one peer runs: `python -m benchmarks.peers.worker MODULE`, driven by `process.PeerProcess`.

A request is a line of JSON on standard input, with the name of a method of `Worker` and its arguments; the answer is a
line of JSON on what was standard output. What the peer prints goes to standard error instead. Nothing of tfperf is
needed here, as a peer's Python does not have what tfperf needs.
"""

import ctypes
import importlib
import itertools
import json
import os
import resource
import signal
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.peers.given import Given

__all__ = ["main"]

PR_SET_PDEATHSIG = 1  # of prctl(2)


class Worker:
    """Answers requests about one peer."""

    def __init__(self, module: str) -> None:
        self._module = module

    def load(self, net: str, folder: str, way: str, precision: str) -> str:
        """Make the peer ready to call; what it is in words."""
        module = importlib.import_module(f"benchmarks.peers.{self._module}")
        self._call, prepare, words = module.load(Given(net, Path(folder), way, precision))
        with np.load(Path(folder) / "inputs.npz", allow_pickle=False) as inputs:
            rows = inputs["0"]
        self._inputs = [prepare(rows[index : index + 1]) for index in range(len(rows))]
        return words

    def answer(self, target: str) -> float:
        """Write the answers to all inputs, one by one, as an array of (inputs, ...); seconds of the first call."""
        began = time.perf_counter()
        self._call(self._inputs[0])
        first_call = time.perf_counter() - began
        with Path(target).open("wb") as file:
            np.save(file, np.concatenate([np.array(self._call(given)) for given in self._inputs]))
        return first_call

    def timed(self, calls: int) -> dict[str, float]:
        """Seconds, and seconds of processors, of so many calls together with the first input."""
        call, given = self._call, self._inputs[0]
        loop = itertools.repeat(None, calls)
        cpu, start = time.process_time(), time.perf_counter()
        for _ in loop:
            call(given)
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "cpu_seconds": time.process_time() - cpu}

    def memory(self) -> int:
        """Bytes: the most resident memory since the start."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def main(module: str) -> None:
    """Answer until standard input ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # where the parent is killed, in the middle of a call
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    worker = Worker(module)
    for line in sys.stdin.buffer:
        name, arguments = json.loads(line)
        try:
            answer = {"answer": getattr(worker, name)(**arguments)}
        except Exception as error:  # whatever a peer raises: it is the answer
            answer = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
        replies.write(json.dumps(answer).encode() + b"\n")
        replies.flush()


if __name__ == "__main__":
    main(sys.argv[1])
