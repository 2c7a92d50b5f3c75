"""Rank 0 goes first, or decides what all ranks call next."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import horovod.tensorflow as hvd
import tensorflow as tf

__all__ = ["lead", "rank_0_first"]

T = TypeVar("T")
_END = -1


def lead(functions: Mapping[str, Callable[[], Any]], lesson: Callable[[dict[str, Callable[[], Any]]], T]) -> T | None:
    """Let rank 0 call functions that need all ranks, as often as it likes; the others follow.

    `tfperf.compare` takes as many samples as it needs, which ranks would not agree on by themselves::

        hvd.lead({"all ranks": step}, lambda ours: compare({"one rank": alone, **ours}))

    Costs one broadcast of a number for each call, about a millisecond.

    Args:
        functions: by name, the same on each rank.
        lesson: called on rank 0 alone, with functions of the same names that make every rank call them.

    Returns:
        What `lesson` returned, on rank 0; None on the others.
    """
    names = list(functions)

    def on_all_ranks(number: int) -> Callable[[], Any]:
        def call() -> Any:
            _tell(number)
            return functions[names[number]]()

        return call

    if hvd.rank() == 0:
        try:
            return lesson({name: on_all_ranks(number) for number, name in enumerate(names)})
        finally:
            _tell(_END)
    while (number := _tell(_END)) != _END:
        functions[names[number]]()
    return None


def rank_0_first(function: Callable[[], T]) -> T:
    """Call a function on rank 0, and on the others when it is done there: for what is fetched once and then found."""
    if hvd.rank() == 0:
        result = function()
        _tell(_END)
        return result
    _tell(_END)
    return function()


def _tell(number: int) -> int:
    """The number that rank 0 gave."""
    return int(hvd.broadcast(tf.constant(number), root_rank=0))
