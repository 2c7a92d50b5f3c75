"""Are the weights of all ranks the same? Digests, and who differs."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf

from tfperf.errors import HorovodError
from tfperf.parallel.horovod.broadcasting import tensorflow_variable
from tfperf.parallel.horovod.stalls import watching

__all__ = ["check_equal", "differing_ranks", "gather_digests", "weights_digest"]

DIGEST_BYTES = 8


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
            ranks = f"rank {odd[0]} differs" if len(odd) == 1 else f"ranks {', '.join(map(str, odd))} differ"
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
