"""A limit of time that counts only while this process runs."""

import math
import time

__all__ = ["LOOK", "SLICE", "Patience"]

LOOK = 0.5
"""Seconds between two looks at a process that is waited for, at most."""

SLICE = 0.1
"""Seconds between two where somebody else may want the waiting to end, or memory is watched."""


class Patience:
    """The seconds that are left of a limit; none are lost while this process stands still.

    Ctrl-Z and `fg`, a paused container and a laptop's sleep stop a process and what it waits for, and no clock of the
    machine. So a look takes away the time since the look before, but at most twice `LOOK`: look at least that often.
    """

    def __init__(self, seconds: float | None) -> None:
        """Begin.

        Args:
            seconds: the limit; None: there is none.
        """
        self._left = math.inf if seconds is None else seconds
        self._last = time.monotonic()

    def left(self) -> float:
        """Look: the seconds that are left, 0 where none are."""
        now = time.monotonic()
        self._left -= min(now - self._last, 2 * LOOK)
        self._last = now
        return max(0.0, self._left)

    def slice(self, most: float = LOOK) -> float:
        """Look: the seconds to wait until the next look."""
        return min(most, self.left())

    def lose_nothing(self) -> None:
        """Take nothing away for the time since the last look: what was waited for was made to stand still."""
        self._last = time.monotonic()
