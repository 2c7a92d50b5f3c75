"""A machine whose clock moves only when work runs, and whose noise is replayed from a real one.

The tests reach it through the fixtures of conftest.py; benchmarks/harness.py uses it too.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

NOISE_FOLDER = Path(__file__).parent / "noise"
FACTS = json.loads((NOISE_FOLDER / "facts.json").read_text())
TRACES = tuple(sorted(FACTS))
"""Names of the recorded traces; benchmarks/record_noise.py says how they came about."""

STEPS_PER_OCTAVE = 4096
LOWEST_OCTAVE = -4


def load_trace(name: str) -> NDArray[np.float64]:
    """The recorded durations of consecutive runs, as factors of their median."""
    codes = np.load(NOISE_FOLDER / f"{name}.npy", allow_pickle=False)
    return np.exp2(codes / STEPS_PER_OCTAVE + LOWEST_OCTAVE)


class FakeMachine:
    """One core and a clock. Time passes only in `spend`, and by `read_cost` with each reading of the clock.

    Noise is a function of the machine's own progress, as in life: whoever works during a burst is slowed by
    it, in proportion to how long he works in it. A trace of n factors is a road of n stretches, each of which
    takes its factor times `unit_seconds`; work drives on along it from where the work before it stopped.
    """

    def __init__(
        self,
        factors: NDArray[np.float64] | None = None,
        *,
        unit_seconds: float = 1e-3,
        start: float = 0.0,
        read_cost: float = 0.0,
    ) -> None:
        self.time = 0.0
        self.read_cost = read_cost
        self.reads = 0
        factors = np.ones(1) if factors is None else np.asarray(factors, np.float64)
        self._factors = factors.tolist()  # lists: a number of an array takes several times as long to fetch
        self._until = [0.0, *np.cumsum(factors).tolist()]
        self._unit = unit_seconds
        self._place = start * len(self._factors)
        self._way = self._driven(self._place)

    @classmethod
    def replaying(cls, trace: str, start: float, *, read_cost: float = 1e-7) -> "FakeMachine":
        """A machine with the noise of a recorded trace; `start`, from 0 to 1, says where on it to begin."""
        return cls(load_trace(trace), unit_seconds=FACTS[trace]["median_seconds"], start=start, read_cost=read_cost)

    def clock(self) -> float:
        """Seconds; a reading costs `read_cost`."""
        self.reads += 1
        self.time += self.read_cost
        return self.time

    def spend(self, seconds: float) -> None:
        """Do work that takes `seconds` where the noise is 1."""
        end = self._place + seconds / self._unit
        way = self._driven(end)
        self.time += self._unit * (way - self._way)
        self._place, self._way = end, way

    def work(self, seconds: float) -> Callable[[], None]:
        """A function that does so much work at each call."""
        return lambda: self.spend(seconds)

    def _driven(self, place: float) -> float:
        rounds, within = divmod(place, len(self._factors))
        whole = int(within)
        return rounds * self._until[-1] + self._until[whole] + (within - whole) * self._factors[whole]


class FakeDevice:
    """An accelerator beside the machine: a call queues its work and returns at once, `synchronize` waits for it."""

    def __init__(self, machine: FakeMachine, dispatch_seconds: float = 1e-6) -> None:
        self.machine = machine
        self.waits = 0
        self._dispatch_seconds = dispatch_seconds
        self._busy_until = -math.inf

    def work(self, seconds: float) -> Callable[[], None]:
        """A function that queues so much work at each call."""

        def launch() -> None:
            self.machine.spend(self._dispatch_seconds)
            self._busy_until = max(self._busy_until, self.machine.time) + seconds

        return launch

    def synchronize(self) -> None:
        """Let time pass until the queue is empty."""
        self.waits += 1
        self.machine.time = max(self.machine.time, self._busy_until)


def nothing() -> None:
    """The synchronizer of a machine without devices."""
