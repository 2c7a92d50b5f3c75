"""Are all ranks doing the same? Their weights compared, points at which they meet, and rank 0 in the lead."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf

from tfperf.errors import HorovodError
from tfperf.parallel.horovod.collectives import gather, join, tensorflow_variable
from tfperf.parallel.horovod.stalls import forget_exchanges, watching
from tfperf.parallel.rank_names import name_ranks

__all__ = [
    "check_equal",
    "check_finished_alike",
    "differing_ranks",
    "fewest",
    "gather_digests",
    "lead",
    "meet",
    "rank_0_first",
    "weights_digest",
]

T = TypeVar("T")

DIGEST_BYTES = 8

_END = -1
"""What rank 0 tells the others when it calls no more."""


def weights_digest(weights: Any) -> str:
    """A digest of a model's weights, or of variables, as 16 hexadecimal digits: equal where all bits are equal.

    Args:
        weights: a `keras.Model`, or Keras or TensorFlow variables.
    """
    digests = b"".join(map(_digest, _variables(weights)))
    return hashlib.blake2b(digests, digest_size=DIGEST_BYTES).hexdigest()


def check_equal(weights: Any, what: str = "weights") -> None:
    """Compare weights across ranks; every rank calls this.

    Costs each rank one pass over the bytes, and 8 bytes for each variable on the wire.

    Args:
        weights: a `keras.Model`, or Keras or TensorFlow variables.
        what: how the error calls them.

    Raises:
        HorovodError: they differ; on every rank, naming the ranks that differ from most, and the first variable.
    """
    variables = _variables(weights)
    digests = gather_digests(variables)
    for number, variable in enumerate(variables):
        odd = differing_ranks({rank: theirs[number] for rank, theirs in digests.items()})
        if odd:
            ranks = f"{name_ranks(odd)} {'differs' if len(odd) == 1 else 'differ'}"
            raise HorovodError(
                f"expected equal {what} on all {hvd.size()} ranks, {ranks} in {_name(variable)}: "
                "wrap the optimizer in hvd.DistributedOptimizer, and change weights on all ranks alike"
            )


def gather_digests(variables: Iterable[Any]) -> dict[int, list[bytes]]:
    """The digest of each variable, by rank; without ranks that wait at the end of an epoch for the others.

    A sum of tables in which each rank fills its own row: that, unlike an allgather, waiting ranks can take part in.
    """
    mine = [_digest(variable) for variable in variables]
    if hvd.size() == 1 or not mine:
        return {hvd.rank(): mine}
    row = np.frombuffer(b"".join(mine), np.int32)
    table = np.zeros((hvd.size(), 1 + len(row)), np.int32)
    table[hvd.rank()] = [1, *row]
    with watching("a comparison of weights"):
        table = hvd.allreduce(tf.constant(table), op=hvd.Sum).numpy()
    return {
        rank: [digest.tobytes() for digest in theirs[1:].reshape(-1, DIGEST_BYTES // 4)]
        for rank, theirs in enumerate(table)
        if theirs[0]
    }


def differing_ranks(values: Mapping[int, Any]) -> list[int]:
    """The ranks whose value is not that of most ranks; of several as frequent, that of the lowest rank counts."""
    most, _ = Counter(values.values()).most_common(1)[0]  # counts keep the order of first appearance
    return [rank for rank, value in values.items() if value != most]


def _variables(weights: Any) -> list[Any]:
    return list(weights.weights if isinstance(weights, keras.Model) else weights)


def _digest(variable: Any) -> bytes:
    """FarmHash64 of the variable's bytes, a fingerprint that is the same on every machine; 8 bytes."""
    row = tf.reshape(tensorflow_variable(variable), [1, -1])
    digest: bytes = tf.fingerprint(row).numpy().tobytes()  # many times as fast as hashes against forgery
    return digest


def _name(variable: Any) -> str:
    return f"'{getattr(variable, 'path', variable.name)}'"


def meet(where: str, number: int) -> list[int]:
    """Wait until every rank is here, and get the number of each, by rank.

    A rank that waits here takes part in the gradient exchanges of those still on their way, with zeros.

    Args:
        where: what this meeting is about, in words.
        number: this rank's, a count of batches or steps.

    Raises:
        HorovodError: ranks came to different meetings; names them.
    """
    if hvd.size() == 1:
        return [number]
    join()
    told = gather([where, number])
    forget_exchanges()  # all ranks are here: what a step that failed has begun goes on nowhere
    places = [place for place, _ in told]
    odd = differing_ranks(dict(enumerate(places)))
    if odd:
        raise HorovodError(
            f"expected all ranks {places[_first_other(odd)]}, {name_ranks(odd)} {places[odd[0]]}: "
            "train the same number of epochs on every rank, and stop early on averaged metrics only"
        )
    return [number for _, number in told]


def fewest(number: int | None) -> int | None:
    """The smallest number that a rank has; None: some rank has none. Every rank calls this."""
    numbers = gather(number) if hvd.size() > 1 else [number]
    return None if None in numbers else min(numbers)


def check_finished_alike(steps: int, weights: Sequence[Any]) -> None:
    """Compare the steps taken and the weights of all ranks at the end of training.

    Raises:
        HorovodError: they differ; names the ranks.
    """
    taken = meet("at the end of training", steps)
    odd = differing_ranks(dict(enumerate(taken)))
    if odd:
        most = taken[_first_other(odd)]
        raise HorovodError(
            f"expected {most} steps on every rank, {name_ranks(odd)} took {taken[odd[0]]}: "
            "give every rank as many batches, with hvd.shard, or add hvd.callbacks.GuardCallback"
        )
    if hvd.size() > 1:
        check_equal(weights)


def _first_other(odd: Sequence[int]) -> int:
    """The lowest rank that is not among `odd`."""
    return next(rank for rank in range(hvd.size()) if rank not in odd)


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
