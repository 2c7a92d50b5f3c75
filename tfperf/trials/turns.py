"""Work of several processes in turns: one of them runs, and is as fast as if it were alone; the others stand still."""

import math
import time
from collections.abc import Callable
from typing import Any

from tfperf.measure.memory import MemoryPeak

__all__ = ["SETTLING_SECONDS", "InTurns", "Turns"]

SETTLING_SECONDS = 0.02
"""Seconds of untimed calls after a process was paused: Linux wakes its threads on one processor,
and spreads them again some milliseconds later. LiteRT with two threads took 8 us a call then, and 20 us before."""


class Turns:
    """Whose turn it is among processes that stand still but in their turns."""

    def __init__(self) -> None:
        """Nobody's."""
        self._turn: InTurns | None = None

    def take(self, work: "InTurns") -> bool:
        """Have what runs now stand still, and this go on; whether it stood still."""
        if self._turn is work:
            return False
        if self._turn is not None:
            self._turn.rest()
        self._turn = work
        work.wake()
        work.settle()
        return True


class InTurns:
    """One work among several, as `tfperf.measure.compare` takes work that times itself."""

    def __init__(
        self,
        work: Any,
        turns: Turns,
        rest: Callable[[], object] = lambda: None,
        wake: Callable[[], object] = lambda: None,
        *,
        settling_seconds: float = SETTLING_SECONDS,
    ) -> None:
        """Take no turn yet.

        Args:
            work: as `tfperf.measure.compare` takes work that times itself.
            rest, wake: have what does the work stand still, and go on.
        """
        self._work, self._turns, self.rest, self.wake = work, turns, rest, wake
        self._settling_seconds = settling_seconds

    def __call__(self) -> None:
        """Call it once; settling has done so, where it stood still."""
        if not self._turns.take(self):
            self._work()

    def timed(self, calls: int) -> float:
        """Seconds of so many calls together, as the process has measured them."""
        self._turns.take(self)
        return float(self._work.timed(calls))

    def memory(self) -> MemoryPeak:
        """The most memory of the process."""
        self._turns.take(self)
        peak: MemoryPeak = self._work.memory()
        return peak

    @property
    def cores_used(self) -> float:
        """Processors busy on average, in all calls."""
        return float(self._work.cores_used)

    def settle(self) -> None:
        """Call it, more and more often, until its threads are where they stay."""
        until, calls = time.monotonic() + self._settling_seconds, 1
        while calls:
            seconds = float(self._work.timed(calls)) / calls
            left = until - time.monotonic()
            calls = min(2 * calls, math.ceil(left / seconds)) if left > 0 and seconds > 0 else 0
