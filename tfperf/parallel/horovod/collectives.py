"""What ranks exchange: values of one rank or of all, and the gradients of an update."""

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

from tfperf.parallel.horovod.process import is_elastic
from tfperf.parallel.horovod.stalls import GraphExchanges, watched, watching

__all__ = [
    "Reduction",
    "all_finite",
    "allgather",
    "allgather_object",
    "allreduce",
    "broadcast",
    "broadcast_object",
    "broadcast_variables",
    "gather",
    "join",
    "tensorflow_variable",
]

Gradient: TypeAlias = "tf.Tensor | tf.IndexedSlices"

CHUNK = 256 * 2**20
"""Bytes broadcast at once: bounds the memory that a large model needs beside its weights."""

GROUP_BYTES = 2**22
"""The least that an exchange is worth while backpropagation goes on: all of a small net is one group."""

_EXCHANGED = {tf.float16, tf.float32, tf.float64}
"""Types of gradients that Horovod exchanges; others, bfloat16, travel as float32."""

allgather = watched(hvd.allgather)
allgather_object = watched(hvd.allgather_object)
allreduce = watched(hvd.allreduce)
broadcast = watched(hvd.broadcast)
broadcast_object = watched(hvd.broadcast_object)
"""Like those above Horovod's own, for a loop's Python: watched, so that a rank does not wait in one for ever."""


@watched
def join() -> tf.Tensor:
    """Take part in the others' allreduces, with zeros, until all ranks are here; the last of them, an int32 scalar.

    Horovod 0.28.1 declares this as an operation without inputs or state, so TensorFlow keeps its first result, and
    a second call of the same one does not wait. Each call here is a function of its own.
    """
    return tf.function(lambda: hvd.join(), autograph=False).get_concrete_function()()


def gather(value: Any) -> list[Any]:
    """The value of every rank, by rank; anything that JSON can say."""
    line = np.frombuffer(json.dumps(value).encode() + b"\n", np.uint8)
    with watching("a comparison of the ranks"):
        lines = hvd.allgather(tf.constant(line)).numpy()
    return [json.loads(text) for text in lines.tobytes().splitlines()]


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


@dataclass(frozen=True)
class Reduction:
    """How the gradients of all ranks become one.

    Dense gradients of one type are exchanged in groups: Horovod starts one when all of it are there and
    copies it into one buffer, which costs one negotiation for each group instead of one for each variable.
    Sparse gradients are gathered, rows of all ranks one after the other.
    """

    name: str
    """The same on each rank, and of no other reduction: Horovod matches what ranks send by name."""
    compression: Any = hvd.Compression.none
    """A class with `compress(tensor)` and `decompress(tensor, context)`."""
    op: int = hvd.Average
    """`hvd.Average`, `hvd.Sum` or `hvd.Adasum`."""
    sparse_as_dense: bool = False
    gradient_predivide_factor: float = 1.0
    """Divides before the sum, and by size / factor after it: against overflow on the way."""
    groups: int | None = None
    """Into how many groups the dense gradients of one type are split; None: each has at least `GROUP_BYTES`."""
    process_set: hvd.ProcessSet = hvd.global_process_set
    _exchanges: GraphExchanges = field(init=False, default_factory=lambda: GraphExchanges("an exchange of gradients"))

    def __call__(self, gradients: Sequence[Gradient]) -> list[Gradient]:
        """Reduce gradients, the same number, order, shapes and types on each rank; order and types stay."""
        if self._alone():
            return list(gradients)
        if self.sparse_as_dense or self.op == hvd.Adasum:
            gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        reduced: dict[int, Gradient] = {}
        by_type: dict[tf.DType, list[int]] = {}
        for position, gradient in enumerate(gradients):
            if isinstance(gradient, tf.IndexedSlices):
                reduced[position] = self._gather(gradient, f"{self.name}_sparse_{position}")
            else:
                by_type.setdefault(gradient.dtype, []).append(position)
        for dtype, positions in by_type.items():
            if self.groups is None:
                groups = _split_by_size(positions, [_bytes(gradients[p]) for p in positions], GROUP_BYTES)
            else:
                groups = _split(positions, self.groups)
            for number, group in enumerate(reversed(groups)):  # as backpropagation makes them
                name = f"{self.name}_{dtype.name}_{number}"
                reduced |= dict(zip(group, self._reduce([gradients[p] for p in group], name), strict=True))
        return [reduced[position] for position in range(len(gradients))]

    def _reduce(self, tensors: list[tf.Tensor], name: str) -> list[tf.Tensor]:
        """Reduce dense tensors of one type."""
        dtype = tensors[0].dtype
        if dtype not in _EXCHANGED:
            tensors = [tf.cast(tensor, tf.float32) for tensor in tensors]
        factor = self.gradient_predivide_factor
        exchange = functools.partial(
            hvd.grouped_allreduce,
            op=self.op if factor == 1.0 else hvd.Sum,
            compression=self.compression,
            process_set=self.process_set,
            name=name,
            ignore_name_scope=True,
            prescale_factor=1.0 / factor,
        )
        reduced = self._exchanges.count(exchange, tensors)
        if factor != 1.0:
            rest = factor / tf.cast(self.size(), tf.float64)  # Horovod's postscale_factor would be that of the trace
            reduced = [tensor * tf.cast(rest, tensor.dtype) for tensor in reduced]
        return [tf.cast(tensor, dtype) for tensor in reduced]

    def _gather(self, slices: tf.IndexedSlices, name: str) -> tf.IndexedSlices:
        """Gather rows: values (rows, ...), indices (rows,); those of rank 0 come first."""
        dtype = slices.values.dtype
        values = slices.values if dtype in _EXCHANGED else tf.cast(slices.values, tf.float32)
        values, context = self.compression.compress(values)
        options = {"process_set": self.process_set, "ignore_name_scope": True}
        gathered, indices = self._exchanges.count(
            lambda parts: [
                hvd.allgather(parts[0], name=f"{name}_values", **options),
                hvd.allgather(parts[1], name=f"{name}_indices", **options),
            ],
            [values, slices.indices],
        )
        values = tf.cast(self.compression.decompress(gathered, context), dtype)
        if self.op == hvd.Average:
            values /= tf.cast(self.size(), dtype)
        return tf.IndexedSlices(values, indices, slices.dense_shape)

    def sum(self, value: tf.Tensor, name: str) -> tf.Tensor:
        """The sum of a value over the ranks; a rank that has joined counts as zero."""
        if self._alone():
            return value
        options = {"process_set": self.process_set, "ignore_name_scope": True}
        (total,) = self._exchanges.count(
            lambda values: [hvd.allreduce(values[0], op=hvd.Sum, name=f"{self.name}_{name}", **options)], [value]
        )
        return total

    def size(self) -> tf.Tensor:
        """The number of ranks when the step runs, which under elastic training is not that of its trace."""
        return hvd.size_op(process_set_id=self.process_set.process_set_id)

    def _alone(self) -> bool:
        return self.process_set.size() == 1 and not is_elastic()


def all_finite(gradients: Sequence[Gradient]) -> tf.Tensor:
    """Whether no gradient holds NaN or infinity; a boolean scalar.

    A sum that is finite has finite terms only, and costs one pass without a tensor in between. The terms
    themselves are looked at when it is not, as a sum of large finite terms may overflow.
    """
    values = [gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient for gradient in gradients]

    def each(measure: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
        return tf.reduce_all(tf.stack([tf.reduce_all(tf.math.is_finite(measure(value))) for value in values]))

    return tf.cond(each(_sum), lambda: True, lambda: each(tf.identity))


def _sum(value: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(value if value.dtype == tf.float64 else tf.cast(value, tf.float32))


def _split(positions: list[int], groups: int) -> list[list[int]]:
    """The positions in at most `groups` lists of nearly equal length, in order."""
    size, larger = divmod(len(positions), min(groups, len(positions)))
    lists, start = [], 0
    for number in range(min(groups, len(positions))):
        end = start + size + (number < larger)
        lists.append(positions[start:end])
        start = end
    return lists


def _split_by_size(positions: list[int], sizes: list[int], least: int) -> list[list[int]]:
    """The positions in lists of at least so many bytes, in order; the first may have less.

    Counted from the end, where backpropagation begins.
    """
    lists: list[list[int]] = []
    room = 0
    for position, size in zip(reversed(positions), reversed(sizes), strict=True):
        if room <= 0:
            lists.append([])
            room = least
        lists[-1].append(position)
        room -= size
    return [group[::-1] for group in reversed(lists)]


def _bytes(gradient: tf.Tensor) -> int:
    return int(gradient.shape.num_elements() or 0) * int(gradient.dtype.size)
