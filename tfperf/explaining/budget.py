"""The seconds that an explanation may take, shared among its stages; Ctrl-C ends them."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from tfperf.measure import Doubt

__all__ = ["Budget"]

Output = TypeVar("Output")

RESERVE = 0.15
"""Share of the time that is left for what has begun to end."""


class Budget:
    """The time of one batch size. A stage begins only if its time is left, and Ctrl-C ends all of them."""

    def __init__(self, seconds: float = math.inf) -> None:
        """Begin now."""
        self._began, self._seconds = time.monotonic(), seconds
        self._left_out: list[str] = []
        self.interrupted = False
        """Whether Ctrl-C has ended a stage; none begins after it."""

    def until(self, share: float, at_least: float = 0.0) -> float:
        """Give the time (`time.monotonic`) at which this share of it is used up.

        Args:
            share: from 0 to 1.
            at_least: seconds from now that there are all the same, on a machine where earlier stages took long; not
                beyond the end.
        """
        if self.interrupted:
            return -math.inf
        end = self._began + (1 - RESERVE) * self._seconds
        return max(self._began + share * self._seconds, min(end, time.monotonic() + at_least))

    def run(self, what: str, seconds: float, stage: Callable[[], Output], otherwise: Output) -> Output:
        """Run a stage if there is time for it.

        Args:
            what: the stage gives, in words; it is named among what was left out if the stage does not end.
            seconds: that it needs.
            stage: the work.
            otherwise: what is returned where it does not run to its end.
        """
        if time.monotonic() + seconds < self.until(1 - RESERVE):
            with self.until_interrupted():
                return stage()
        self.leave_out(what)
        return otherwise

    def leave_out(self, what: str) -> None:
        """Note what there will not be, for `doubts`."""
        self._left_out.append(what)

    @contextlib.contextmanager
    def until_interrupted(self) -> Iterator[None]:
        """Do what may end before it is done: Ctrl-C ends it, and no stage begins after it."""
        try:
            yield
        except KeyboardInterrupt:
            self.interrupted = True

    @property
    def doubts(self) -> tuple[Doubt, ...]:
        """What was left out, and why."""
        if not self._left_out:
            return ()
        why = "interrupted" if self.interrupted else "the time limit was too short"
        words = f"{why}: left out {', '.join(self._left_out)}"
        return (Doubt(name="left out", words=words, advice="raise --time-limit to have it"),)
