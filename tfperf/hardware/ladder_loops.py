"""Loops that do one thing to memory, compiled by Numba: nothing of an interpreter or of a framework is in their time.

Importing this module needs Numba, of the extra [hardware].
"""

from typing import Any

import numba
from numba.core import config as numba_config
from numba.core import types
from numba.extending import intrinsic
from numba.np import arrayobj

__all__ = ["SCALAR", "VECTOR", "chase", "chase_side_by_side", "count", "count_at_once", "total"]


config: Any = numba_config  # it gets its settings while it is imported, which no type checker sees
inside: Any = arrayobj  # has no types


def _chase(following: Any, place: int, steps: int) -> int:
    """Go so many steps from index to index, each found at the one before; returns where it ends.

    Args:
        following: uint64, (numbers,): at each index that is met the next one. Unsigned, as for an index that may be
            negative the compiler would add what a step does not need.
    """
    for _ in range(steps):
        place = following[place]
    return place


def _chase_side_by_side(following: Any, places: Any, steps: int) -> int:
    """Go so many steps along each of several chains at once, and add up the indexes that are met.

    Args:
        following: as in `_chase`.
        places: uint64, (chains,): where each chain begins, and afterwards where it ends.
    """
    found = 0
    for _ in range(steps):
        for chain in range(len(places)):
            found += places[chain]
            places[chain] = following[places[chain]]
    return found


def _total(numbers: Any, passes: int) -> int:
    """The sum of the differing bits of int64 numbers and the pass's number; (numbers,) is read once a pass."""
    found = 0
    for number in range(passes):
        for index in range(len(numbers)):
            found += numbers[index] ^ number
    return found


def _count(counts: Any, place: int, steps: int, spread: int) -> None:
    """Add one so many times to a counter in memory.

    Args:
        spread: 0, which the compiler cannot know, so that it may not keep the counter in a register.
    """
    for step in range(steps):
        counts[place + (step & spread)] += 1


def _addition(_: Any, numbers: Any, _index: Any, _more: Any) -> Any:
    """Add to a number in memory in one instruction, for which the core must have the line to itself."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        array = inside.make_array(signature.args[0])(context, builder, values[0])
        place = inside.cgutils.get_item_pointer(context, builder, signature.args[0], array, [values[1]])
        return builder.atomic_rmw("add", place, values[2], "monotonic")

    return types.int64(numbers, types.intp, types.int64), generate


_add_at_once: Any = intrinsic(_addition)


def _count_at_once(counts: Any, place: int, steps: int, spread: int) -> None:
    """Count like `_count`, with an atomic addition."""
    for step in range(steps):
        _add_at_once(counts, place + (step & spread), 1)


def _scale_and_add(x: Any, y: Any, factor: Any, passes: int) -> None:
    """Have y hold factor y + x, so many times; x and y (numbers,)."""
    for _ in range(passes):
        for index in range(len(y)):
            y[index] = y[index] * factor + x[index]


def _compiled(vectorized: bool) -> Any:
    """The same loop, with vector instructions or without any."""
    before = config.LOOP_VECTORIZE, config.SLP_VECTORIZE
    config.LOOP_VECTORIZE, config.SLP_VECTORIZE = int(vectorized), int(vectorized)
    try:
        return numba.njit("void(float32[::1], float32[::1], float32, int64)", nogil=True)(_scale_and_add)
    finally:
        config.LOOP_VECTORIZE, config.SLP_VECTORIZE = before


chase = numba.njit("uint64(uint64[::1], uint64, int64)", nogil=True)(_chase)
chase_side_by_side = numba.njit("uint64(uint64[::1], uint64[::1], int64)", nogil=True)(_chase_side_by_side)
total = numba.njit("int64(int64[::1], int64)", nogil=True)(_total)
count = numba.njit("void(int64[::1], int64, int64, int64)", nogil=True)(_count)
count_at_once = numba.njit("void(int64[::1], int64, int64, int64)", nogil=True)(_count_at_once)
SCALAR = _compiled(vectorized=False)
VECTOR = _compiled(vectorized=True)
