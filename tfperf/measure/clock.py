"""The clock that measures, and what reading it costs."""

import time
from collections.abc import Callable

__all__ = ["Clock", "Synchronizer", "read_cost", "wall_clock"]

Clock = Callable[[], float]
"""Returns seconds from any origin; never goes backwards."""

Synchronizer = Callable[[], None]
"""Returns when all work handed to the devices so far is done."""

wall_clock: Clock = time.perf_counter


def read_cost(clock: Clock, synchronize: Synchronizer, tries: int = 200) -> float:
    """Seconds that the two readings around a sample, with the wait before the second, add to it.

    The median over many empty samples: a stray interruption of one of them is not a cost.
    """
    costs = []
    for _ in range(tries):
        synchronize()
        start = clock()
        synchronize()
        costs.append(clock() - start)
    return sorted(costs)[tries // 2]
