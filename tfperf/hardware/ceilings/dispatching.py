"""What it costs to hand out an operation, told by how two loops differ that do more and less of the same."""

import functools
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfperf.hardware.ceilings.looping import Loop
from tfperf.hardware.repeating import Work

__all__ = ["GRAPH_OP", "XLA_TURN", "dispatch_works", "dispatches"]

GRAPH_OP, XLA_TURN = "graph op", "turn of XLA"
"""One more operation in a graph; one more turn of a loop that XLA has compiled, with one operation in it."""

STEPS = 16, 272
"""Operations in a turn of TensorFlow's two loops."""

SIZES = 4 * 2**10, 16 * 2**10
"""Bytes that the operation of XLA's two loops changes; any first cache holds them."""


def dispatch_works(compiled: bool) -> list[Work]:
    """The loops to be timed.

    Args:
        compiled: those of XLA, too.
    """
    one = tf.constant(1.0)
    works = [
        Work(_turns(steps), functools.partial(Loop(_multiply, steps).sampler, [tf.ones([16]), one])) for steps in STEPS
    ]
    if compiled:
        loop = Loop(_multiply, compiled=True)
        works += [Work(_turn(size), functools.partial(loop.sampler, [tf.ones([size // 4]), one])) for size in SIZES]
    return works


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
