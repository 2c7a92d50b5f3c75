"""Values of one rank to all ranks."""

from collections.abc import Iterable, Iterator
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

from tfperf.parallel.horovod.stalls import watching

__all__ = ["broadcast_variables", "tensorflow_variable"]

CHUNK = 256 * 2**20
"""Bytes sent at once: bounds the memory that a large model needs beside its weights."""


def broadcast_variables(
    variables: Iterable[Any], root_rank: int = 0, process_set: hvd.ProcessSet = hvd.global_process_set
) -> None:
    """Give each variable the value that it has on `root_rank`; bit by bit, whatever its type.

    Every rank calls this with variables of the same shapes and types in the same order.

    Args:
        variables: Keras or TensorFlow variables.
        root_rank: the rank whose values are kept.
        process_set: the ranks that take part.
    """
    mine = [tensorflow_variable(variable) for variable in variables]
    if process_set.size() == 1 or not mine:
        return
    values = [np.asarray(variable.numpy()) for variable in mine]
    flat = np.concatenate([np.ascontiguousarray(value).reshape(-1).view(np.uint8) for value in values])
    for chunk in _chunks(flat):
        with watching("a broadcast of weights"):
            chunk[:] = hvd.broadcast(tf.constant(chunk), root_rank, process_set=process_set).numpy()
    start = 0
    for variable, value in zip(mine, values, strict=True):
        end = start + value.nbytes
        variable.assign(flat[start:end].view(value.dtype).reshape(value.shape))
        start = end


def tensorflow_variable(variable: Any) -> tf.Variable:
    """The `tf.Variable` inside a Keras variable, or the TensorFlow variable itself."""
    return variable if isinstance(variable, tf.Variable) else variable.value


def _chunks(flat: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(0, len(flat), CHUNK):
        yield flat[start : start + CHUNK]
