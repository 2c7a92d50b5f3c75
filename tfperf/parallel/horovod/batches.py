"""Each rank its share of the data, and as many batches as every other rank."""

import warnings
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import horovod.tensorflow as hvd
import keras
import tensorflow as tf

from tfperf.parallel.horovod.collectives import gather
from tfperf.parallel.horovod.stalls import watching
from tfperf.parallel.rank_names import name_ranks

__all__ = ["equal_batches", "shard"]

T = TypeVar("T")
_END: Any = object()


def shard(data: Any) -> Any:
    """This rank's share: every size-th example from its rank on, the same number on each rank.

    What is left over, less than one example a rank, is dropped. The data must be the same, in the same order,
    on every rank; shuffle after this, or with one seed before it. Shard examples rather than batches.

    Args:
        data: a `tf.data.Dataset`, of known length or not; or arrays, in tuples or dictionaries, which are
            shared out along their first axis.
    """
    rank, size = hvd.rank(), hvd.size()
    if not isinstance(data, tf.data.Dataset):
        return keras.tree.map_structure(lambda array: array[rank::size][: len(array) // size], data)
    if size == 1:
        return data
    mine = data.shard(size, rank)
    total = int(data.cardinality())
    if total == tf.data.INFINITE_CARDINALITY:
        return mine
    if total >= 0:
        return mine.take(total // size).apply(tf.data.experimental.assert_cardinality(total // size))
    last = data.shard(size, size - 1)  # the shortest share; a pair of datasets ends with the shorter one
    return tf.data.Dataset.zip(mine, last).map(lambda own, _: own)


def equal_batches(batches: Iterable[T]) -> Iterator[T]:
    """The batches of a loop of your own, until the first rank runs out: then the loop ends on all ranks.

    Costs one exchange of a number for each batch, about a millisecond.

    Warns:
        UserWarning: ranks had different numbers of batches; names those that ran out first.
    """
    iterator = iter(batches)
    while True:
        batch = next(iterator, _END)
        lacking = _sum_over_ranks(batch is _END)
        if lacking:
            break
        yield batch
    if lacking < hvd.size():
        out = [rank for rank, has_none in enumerate(gather(batch is _END)) if has_none]
        warnings.warn(f"{name_ranks(out)} ran out of batches first; the others leave theirs out", stacklevel=2)


def _sum_over_ranks(flag: bool) -> int:
    if hvd.size() == 1:
        return int(flag)
    with watching("a count of the batches left"):
        return int(hvd.allreduce(tf.constant(int(flag)), op=hvd.Sum))
