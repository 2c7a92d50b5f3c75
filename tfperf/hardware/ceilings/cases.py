"""What is measured for the ceilings: each case is one operation of TensorFlow on tensors of one size."""

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tfperf.hardware.ceilings import Bandwidth, ProductRate
from tfperf.hardware.ceilings.figures import Order
from tfperf.hardware.ceilings.looping import GRAPH_OP, XLA_TURN, Loop
from tfperf.hardware.repeating import Sample

__all__ = ["TF32", "Case", "cases"]

TF32 = "float32 (TF32)"
"""Products of float32 whose factors a GPU cuts to 10 bits; what is called float32 here is not cut."""

TYPES = ("float32", "bfloat16", "float16", "int8")

PRODUCTS: tuple[tuple[int | None, int], ...] = ((None, 512), (8192, 1024))
"""Rows and size. Of many rows most of the time is arithmetic: a kernel may rearrange the other factor first."""

QUICK_PRODUCTS: tuple[tuple[int | None, int], ...] = ((2048, 1024),)

GPU_PRODUCTS: tuple[tuple[int | None, int], ...] = ((None, 4096), (None, 8192))

POINTWISE_SETS = tuple(2**power for power in (15, 17, 19, 21, 23, 28))  # 32 KiB, in the first cache, to 256 MiB
WEIGHT_SETS = tuple(2**power for power in (19, 23, 28))

QUICK_POINTWISE_SETS, QUICK_WEIGHT_SETS = POINTWISE_SETS[::2] + POINTWISE_SETS[-1:], WEIGHT_SETS[::2]

COMPILED_SHARE = 2**20
"""Bytes of a tensor up to which XLA computes it, whose kernel is faster than TensorFlow's, as long as it is in a
core's own cache: of larger ones two side by side were no faster than one.
"""

TYPICAL_RATE = 1e11
"""Bytes a second, by which it is guessed how many operations make a turn of the loop."""

TURN_SECONDS = 2e-4
"""Seconds of operations in a turn, beside which its own 5 us are little."""

MOST_UNROLLED = 32

NEW_MEMORY = 0.5
"""What is added to the bytes of an operation that reads and writes: a cache also reads what is written to elsewhere,
three parts for two."""


class Case(NamedTuple):
    """An operation to be timed, and the figure that comes of it."""

    name: str
    kind: str
    """The words for products of a type: "float32 products"."""
    work: float
    """Floating-point operations, or bytes, of one operation, or of all that run at the same time."""
    figure: Callable[[float], ProductRate | Bandwidth]
    """From work per second."""
    sampler: Callable[[], Sample]
    dispatches: Mapping[str, int]
    """How many dispatches are in that time, by the name of what one costs; of long operations they are left."""


def cases(order: Order, largest_set: int, on_gpu: bool = False) -> Iterator[Case]:
    """All cases; of a kind the smaller first.

    Args:
        order: what is to be measured.
        largest_set: bytes that the memory allows for a tensor.
        on_gpu: as well those that only a GPU can, and one operation at a time has the memory.
    """
    for dtype in (*TYPES, TF32) if on_gpu else TYPES:
        for rows, size in (QUICK_PRODUCTS if order.quick else PRODUCTS) + GPU_PRODUCTS * on_gpu:
            yield _product(order.threads, dtype, size, rows)
    counts = (order.threads,) if on_gpu else order.memory
    for count in counts:
        operations = 1 if on_gpu else count
        for working_set in QUICK_POINTWISE_SETS if order.quick else POINTWISE_SETS:
            if working_set <= largest_set:
                yield _pointwise(count, operations, working_set, on_gpu)
        for working_set in QUICK_WEIGHT_SETS if order.quick else WEIGHT_SETS:
            if working_set <= largest_set:
                yield _weights(count, operations, working_set)


def _product(threads: int, dtype: str, size: int, rows: int | None) -> Case:
    whole = dtype == "int8"  # TensorFlow's own kernel for these is a plain loop; XLA's is not
    stored = "float32" if dtype == TF32 else dtype
    loop = Loop(_whole_product if whole else tf.matmul, compiled=whole)

    def sampler() -> Sample:
        rotation = _rotation(size, whole)
        left = np.tile(rotation, (math.ceil((rows or size) / size), 1))[:rows]
        sample = loop.sampler([tf.cast(left, stored), tf.cast(rotation, stored)])
        return _in_tf32(sample) if dtype == TF32 else sample

    def figure(rate: float) -> ProductRate:
        return ProductRate(dtype=dtype, threads=threads, size=size, rows=rows, compiled=whole, flops_per_second=rate)

    name = f"{dtype} product {rows or size} x {size} by {size} x {size}"
    return Case(name, f"{dtype} products", 2 * (rows or size) * size * size, figure, sampler, {})


def _whole_product(left: Any, right: Any) -> Any:
    return tf.cast(tf.matmul(left, right, output_type=tf.int32), tf.int8)


def _in_tf32(sample: Sample) -> Sample:
    def allowed() -> float:
        tf.config.experimental.enable_tensor_float_32_execution(True)
        try:
            return sample()
        finally:
            tf.config.experimental.enable_tensor_float_32_execution(False)

    return allowed


def _pointwise(threads: int, operations: int, working_set: int, on_gpu: bool) -> Case:
    numbers = working_set // 4 // operations
    work = 2 * 4 * numbers
    compiled = 4 * numbers <= COMPILED_SHARE and not on_gpu
    loop = Loop(tf.multiply, compiled=True) if compiled else Loop(tf.multiply, _unrolled(work), extra=NEW_MEMORY)

    def sampler() -> Sample:
        return loop.sampler(*[(tf.ones([numbers]), tf.constant(1.0))] * operations)

    def figure(rate: float) -> Bandwidth:
        return Bandwidth(threads=threads, working_set=working_set, bytes_per_second=rate, kind="pointwise")

    name = f"pointwise, {_shared(working_set, operations)}"
    return Case(name, "bandwidths", work * operations, figure, sampler, {XLA_TURN if compiled else GRAPH_OP: 1})


def _weights(threads: int, operations: int, working_set: int) -> Case:
    """Each operation has square matrices of its own, the largest that are a power of two wide."""
    numbers = working_set // 4 // operations
    side = 2 ** int(math.log2(numbers) / 2)
    matrices = numbers // side**2
    work = 4 * side**2 * matrices
    loop = Loop(_products, _unrolled(work))

    def sampler() -> Sample:
        # Numbers keep their size, however many products follow each other.
        shares = [[tf.fill([side, side], 1 / side) for _ in range(matrices)] for _ in range(operations)]
        return loop.sampler(*([tf.ones([1, side]), *share] for share in shares))

    def figure(rate: float) -> Bandwidth:
        return Bandwidth(threads=threads, working_set=work * operations, bytes_per_second=rate, kind="weights")

    name = f"weights, {_shared(work * operations, operations)}"
    return Case(name, "bandwidths", work * operations, figure, sampler, {GRAPH_OP: matrices})


def _products(row: Any, *matrices: Any) -> Any:
    return functools.reduce(tf.matmul, matrices, row)


def _shared(working_set: int, operations: int) -> str:
    return f"{working_set // 1024} KiB" + f", {operations} side by side" * (operations > 1)


def _unrolled(work: float) -> int:
    return max(1, min(MOST_UNROLLED, int(TURN_SECONDS * TYPICAL_RATE / work)))


def _rotation(side: int, whole: bool) -> NDArray[np.float32]:
    """Sylvester's matrix, (side, side), orthogonal: numbers keep their size, however many products follow each other.

    Args:
        side: a power of two.
        whole: leave its entries 1 and -1.
    """
    matrix = np.ones((1, 1), np.float32)
    while len(matrix) < side:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix if whole else matrix / np.float32(math.sqrt(side))
