"""An operation again and again inside one graph of TensorFlow, so that calling the graph is not in its time.

What it costs to hand out an operation is told by how two such loops differ that do more and less of the same.
"""

import functools
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tensorflow as tf

from tfperf.hardware.repeating import Sample, TimedTask
from tfperf.measure.clock import device_synchronizer

__all__ = ["GRAPH_OP", "XLA_TURN", "Loop", "dispatch_tasks", "dispatches"]

SAMPLE_SECONDS = 6e-3
"""That a sample should last: short enough to be undisturbed often, long enough for the clock and for the call."""

IDLE_TRIES, IDLE_SECONDS = 10, 0.05
"""Calls, or seconds of calls, in which it is found what a call takes without the turns that are timed."""

LEAST_TURNS = 8
"""Where the first step takes longer than the others."""

MOST_TURNS = 2**20


GRAPH_OP, XLA_TURN = "graph op", "turn of XLA"
"""One more operation in a graph; one more turn of a loop that XLA has compiled, with one operation in it."""

STEPS = 16, 272
"""Operations in a turn of TensorFlow's two loops."""

SIZES = 4 * 2**10, 16 * 2**10
"""Bytes that the operation of XLA's two loops changes; any first cache holds them."""


class Loop:
    """A step that takes its own answer again, in tf.while_loop; traced once, whatever the number of turns."""

    def __init__(
        self, step: Callable[..., Any], unrolled: int = 1, *, compiled: bool = False, extra: float = 0.0
    ) -> None:
        """Nothing is traced yet.

        Args:
            step: from a tensor, and others that stay the same, to a tensor of the same shape and type.
            unrolled: steps in one turn of the loop, over which the loop's own cost is spread.
            compiled: by XLA.
            extra: steps by which the first takes longer. What the loop begins with is somebody else's, so that the
                first step writes to other memory, while those after it write in its place.
        """
        self._unrolled, self._extra = unrolled, extra
        self._turns = LEAST_TURNS if extra else 1

        def run(turns: Any, state: Any, *others: Any) -> Any:
            def turn(done: Any, state: Any) -> tuple[Any, Any]:
                for _ in range(unrolled):
                    state = step(state, *others)
                return done + 1, state

            return tf.while_loop(lambda done, _: done < turns, turn, (tf.constant(0), state), parallel_iterations=1)[1]

        self._run = tf.function(run, autograph=False, jit_compile=compiled or None)

    def sampler(self, *shares: Sequence[Any]) -> Sample:
        """A function that takes a sample: seconds of one step.

        What a call takes in which the loop makes no turn is subtracted.

        Args:
            shares: what the step takes. Of several shares each has a thread of its own, all at the same time, and the
                slowest counts.
        """
        wait = device_synchronizer()

        def one(turns: Any, share: Sequence[Any]) -> float:
            start = time.perf_counter()
            self._run(turns, *share)
            wait()
            return time.perf_counter() - start

        seconds = _together(one, shares) if len(shares) > 1 else functools.partial(one, share=shares[0])
        nothing = tf.constant(0)
        seconds(nothing)
        idle = _least(functools.partial(seconds, nothing))
        turns = tf.constant(self._turns)
        # The shortest of three: one that is disturbed would pass for long enough.
        while (once := min(seconds(turns) for _ in range(3)) - idle) < SAMPLE_SECONDS / 2 and self._turns < MOST_TURNS:
            self._turns *= math.ceil(SAMPLE_SECONDS / max(once, SAMPLE_SECONDS / 16))
            turns = tf.constant(self._turns)
        steps = self._turns * self._unrolled + self._extra
        return lambda: max(seconds(turns) - idle, 1e-9) / steps


def _together(work: Callable[[Any, Sequence[Any]], float], shares: Sequence[Sequence[Any]]) -> Callable[[Any], float]:
    """The seconds of the slowest of several threads that begin together, each with its share."""
    threads, begin = ThreadPoolExecutor(len(shares)), threading.Barrier(len(shares))

    def seconds(turns: Any) -> float:
        def one(share: Sequence[Any]) -> float:
            begin.wait()
            return work(turns, share)

        return max(threads.map(one, shares))

    return seconds


def _least(seconds: Callable[[], float]) -> float:
    """The least of several tries, of fewer where one takes long."""
    taken = [seconds()]
    while (len(taken) < IDLE_TRIES and sum(taken) < IDLE_SECONDS) or len(taken) < 3:
        taken.append(seconds())
    return min(taken)


def dispatch_tasks(compiled: bool) -> list[TimedTask]:
    """The loops to be timed.

    Args:
        compiled: those of XLA, too.
    """
    one = tf.constant(1.0)
    tasks = [
        TimedTask(_turns(steps), functools.partial(Loop(_multiply, steps).sampler, [tf.ones([16]), one]))
        for steps in STEPS
    ]
    if compiled:
        loop = Loop(_multiply, compiled=True)
        tasks += [
            TimedTask(_turn(size), functools.partial(loop.sampler, [tf.ones([size // 4]), one])) for size in SIZES
        ]
    return tasks


def dispatches(seconds: Mapping[str, float]) -> dict[str, float]:
    """Seconds of each dispatch, by what the loops' operations took."""
    less, more = STEPS
    few, many = (seconds[_turns(steps)] * steps for steps in STEPS)
    found = {GRAPH_OP: max(many - few, 1e-9) / (more - less)}
    small, large = SIZES
    if _turn(small) in seconds:
        each_byte = (seconds[_turn(large)] - seconds[_turn(small)]) / (large - small)
        found[XLA_TURN] = max(seconds[_turn(small)] - small * each_byte, 0.0)
    return found


def _multiply(x: Any, factor: Any) -> Any:
    return x * factor


def _turns(steps: int) -> str:
    return f"turn of {steps} operations"


def _turn(size: int) -> str:
    return f"{XLA_TURN} with {size // 1024} KiB"
