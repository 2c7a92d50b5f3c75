"""What is measured for the ceilings: each case is one operation of TensorFlow on tensors of one size."""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tfperf.hardware.ceilings import Bandwidth, ConvolutionRate, ProductRate
from tfperf.hardware.ceilings.looping import Loop
from tfperf.hardware.repeating import Sample

__all__ = ["TF32", "Case", "cases"]

TF32 = "float32 (TF32)"
"""Products of float32 whose factors a GPU cuts to 10 bits; what is called float32 here is not cut."""

TYPES = ("float32", "bfloat16", "float16", "int8")

PRODUCT_SIZES = (32, 64, 128, 256, 512, 1024, 2048)
THIN_ROWS, THIN_SIZES = (1, 8, 64), (64, 256, 1024, 2048)
KERNELS, CHANNELS, POSITIONS = (1, 3), (8, 32, 128, 512), (16, 128, 1024, 8192)
POINTWISE_SETS = tuple(2**power for power in range(14, 30))  # 16 KiB, in the first cache, to 512 MiB
WEIGHT_SETS = tuple(4**power for power in range(8, 15))  # 64 KiB to 256 MiB

QUICK_PRODUCT_SIZES = (64, 256, 1024)
QUICK_THIN_ROWS, QUICK_THIN_SIZES = (1, 64), (256, 1024)
QUICK_CHANNELS, QUICK_POSITIONS = (32, 256), (64, 1024)
QUICK_POINTWISE_SETS = tuple(2**power for power in (14, 18, 22, 26, 28))
QUICK_WEIGHT_SETS = tuple(4**power for power in (9, 11, 13))

COMPILED_SETS = 2**20
"""Bytes; smaller sets are XLA's: TensorFlow's dispatch of an operation would take longer than the operation."""

TYPICAL_RATE = 1e11
"""Floating-point operations, or bytes, a second, by which it is guessed how many operations make a turn of the loop."""

TURN_SECONDS = 2e-4
"""Of operations in a turn, beside which its own 5 us are little."""

MOST_UNROLLED = 32

IMAGE_SIDE = 32
"""Pixels; of more positions several images are made."""


class Case(NamedTuple):
    """An operation to be timed, and the figure that comes of it."""

    name: str
    kind: str
    """As "float32 products"."""
    group: str
    """Of cases of a kind that differ in size only, the smaller first."""
    work: float
    """Floating-point operations, or bytes, of one operation."""
    figure: Callable[[float], ProductRate | ConvolutionRate | Bandwidth]
    """From work per second."""
    sampler: Callable[[], Sample]
    dispatched: bool
    """Whether TensorFlow's runtime hands out each operation; not inside a loop of XLA."""


def cases(threads: int, quick: bool, largest_set: int, on_gpu: bool = False) -> Iterator[Case]:
    """All cases, group by group.

    Args:
        threads: that TensorFlow has in this process, for the figures.
        quick: fewer sizes.
        largest_set: bytes that the memory allows for a tensor.
        on_gpu: as well those that only a GPU can.
    """
    for dtype in (*TYPES, TF32) if on_gpu else TYPES:
        for size in QUICK_PRODUCT_SIZES if quick else PRODUCT_SIZES + (4096, 8192) * on_gpu:
            yield _product(threads, dtype, size)
    for dtype in TYPES[:2]:
        for rows in QUICK_THIN_ROWS if quick else THIN_ROWS:
            for size in QUICK_THIN_SIZES if quick else THIN_SIZES:
                yield _product(threads, dtype, size, rows)
    for dtype in TYPES[:2]:
        for kernel in KERNELS:
            for channels in QUICK_CHANNELS if quick else CHANNELS:
                for positions in QUICK_POSITIONS if quick else POSITIONS:
                    yield _convolution(threads, dtype, kernel, channels, positions)
    for size in QUICK_POINTWISE_SETS if quick else POINTWISE_SETS:
        if size <= largest_set:
            yield _pointwise(threads, size)
    for size in QUICK_WEIGHT_SETS if quick else WEIGHT_SETS:
        if size <= largest_set:
            yield _weights(threads, size)


def _product(threads: int, dtype: str, size: int, rows: int | None = None) -> Case:
    flops = 2 * (rows or size) * size * size
    whole = dtype == "int8"  # TensorFlow's own kernel for these is a plain loop; XLA's is not
    stored = "float32" if dtype == TF32 else dtype
    loop = Loop(_whole_product if whole else tf.matmul, 1 if whole else _unrolled(flops), compiled=whole)

    def sampler() -> Sample:
        rotation = _rotation(size, whole)
        sample = loop.sampler(tf.cast(rotation[: rows or size], stored), tf.cast(rotation, stored))
        return _in_tf32(sample) if dtype == TF32 else sample

    def figure(rate: float) -> ProductRate:
        return ProductRate(dtype=dtype, threads=threads, size=size, rows=rows, compiled=whole, flops_per_second=rate)

    name = f"{dtype} product {rows or size} x {size} by {size} x {size}"
    return Case(name, f"{dtype} products", str(rows), flops, figure, sampler, not whole)


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


def _convolution(threads: int, dtype: str, kernel: int, channels: int, positions: int) -> Case:
    side = min(IMAGE_SIDE, 2 ** int(math.log2(positions) / 2))
    flops = 2 * kernel**2 * channels**2 * positions
    loop = Loop(lambda x, filters: tf.nn.conv2d(x, filters, 1, "SAME"), _unrolled(flops))

    def sampler() -> Sample:
        filters = np.zeros((kernel, kernel, channels, channels), np.float32)
        filters[kernel // 2, kernel // 2] = _rotation(channels)
        # They come as a variable's value would, not as a constant that a kernel may rearrange once and for all.
        return loop.sampler(tf.ones([positions // side**2, side, side, channels], dtype), tf.cast(filters, dtype))

    def figure(rate: float) -> ConvolutionRate:
        return ConvolutionRate(
            dtype=dtype, threads=threads, kernel=kernel, channels=channels, positions=positions, flops_per_second=rate
        )

    name = f"{dtype} convolution {kernel} x {kernel}, {channels} channels, {positions} positions"
    return Case(name, f"{dtype} convolutions", f"{kernel} {channels}", flops, figure, sampler, True)


def _pointwise(threads: int, size: int) -> Case:
    compiled = size < COMPILED_SETS
    work = 2 * size
    loop = Loop(tf.multiply, 1 if compiled else _unrolled(work), compiled)

    def sampler() -> Sample:
        return loop.sampler(tf.ones([size // 4]), tf.constant(1.0))

    def figure(rate: float) -> Bandwidth:
        return Bandwidth(threads=threads, working_set=size, bytes_per_second=rate, kind="pointwise")

    return Case(f"pointwise, {size // 1024} KiB", "bandwidths", "pointwise", work, figure, sampler, not compiled)


def _weights(threads: int, size: int) -> Case:
    side = math.isqrt(size // 4)
    loop = Loop(tf.matmul, _unrolled(size))

    def sampler() -> Sample:
        return loop.sampler(tf.ones([1, side]), tf.constant(_rotation(side)))

    def figure(rate: float) -> Bandwidth:
        return Bandwidth(threads=threads, working_set=size, bytes_per_second=rate, kind="weights")

    return Case(f"weights, {size // 1024} KiB", "bandwidths", "weights", size, figure, sampler, True)


def _unrolled(work: float) -> int:
    return max(1, min(MOST_UNROLLED, int(TURN_SECONDS * TYPICAL_RATE / work)))


def _rotation(side: int, whole: bool = False) -> NDArray[np.float32]:
    """Sylvester's matrix, (side, side), orthogonal: numbers keep their size, however many products follow each other.

    Args:
        side: a power of two.
        whole: leave its entries 1 and -1.
    """
    matrix = np.ones((1, 1), np.float32)
    while len(matrix) < side:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix if whole else matrix / np.float32(math.sqrt(side))
