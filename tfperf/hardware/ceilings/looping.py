"""An operation again and again inside one graph of TensorFlow, so that calling the graph is not in its time."""

import math
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfperf.hardware.repeating import Sample
from tfperf.measure.devices import device_synchronizer

__all__ = ["Loop"]

SAMPLE_SECONDS = 3e-3
"""That a sample should last: short enough to be undisturbed often, long enough for the clock."""

IDLE_TRIES = 10

MOST_TURNS = 2**20


class Loop:
    """A step that takes its own answer again, in tf.while_loop; traced once, whatever the number of turns."""

    def __init__(self, step: Callable[..., Any], unrolled: int = 1, compiled: bool = False) -> None:
        """Nothing is traced yet.

        Args:
            step: from a tensor, and others that stay the same, to a tensor of the same shape and type.
            unrolled: steps in one turn of the loop, over which the loop's own cost is spread.
            compiled: by XLA.
        """
        self._unrolled = unrolled
        self._turns = 1

        def run(turns: Any, state: Any, *others: Any) -> Any:
            def turn(done: Any, state: Any) -> tuple[Any, Any]:
                for _ in range(unrolled):
                    state = step(state, *others)
                return done + 1, state

            return tf.while_loop(lambda done, _: done < turns, turn, (tf.constant(0), state), parallel_iterations=1)[1]

        self._run = tf.function(run, autograph=False, jit_compile=compiled or None)

    def sampler(self, *arguments: Any) -> Sample:
        """A function that takes a sample with these arguments: seconds of one step.

        What a call takes in which the loop makes no turn is subtracted.
        """
        wait = device_synchronizer()

        def seconds(turns: Any) -> float:
            start = time.perf_counter()
            self._run(turns, *arguments)
            wait()
            return time.perf_counter() - start

        nothing = tf.constant(0)
        seconds(nothing)
        idle = min(seconds(nothing) for _ in range(IDLE_TRIES))
        turns = tf.constant(self._turns)
        # The shortest of three: one that is disturbed would pass for long enough.
        while (once := min(seconds(turns) for _ in range(3)) - idle) < SAMPLE_SECONDS / 2 and self._turns < MOST_TURNS:
            self._turns *= math.ceil(SAMPLE_SECONDS / max(once, SAMPLE_SECONDS / 16))
            turns = tf.constant(self._turns)
        steps = self._turns * self._unrolled
        return lambda: max(seconds(turns) - idle, 1e-9) / steps
