"""What a machine can give, as it was measured through TensorFlow, and what that says of other sizes. No TensorFlow."""

import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Literal

from pydantic import Field

from tfperf.errors import HardwareError
from tfperf.measure import Doubt, Environment
from tfperf.measure.value import Count, Name, Text, Value

__all__ = [
    "Bandwidth",
    "CallCost",
    "Ceilings",
    "ConvolutionRate",
    "ProductRate",
    "Refusal",
    "thread_words",
]

FORMAT: Literal["tfperf ceilings"] = "tfperf ceilings"
VERSION: Literal[1] = 1

Curve = Mapping[float, float]
"""What was measured at each size."""


class ProductRate(Value):
    """How fast matrices are multiplied: (rows, size) by (size, size)."""

    dtype: Name
    threads: Count
    size: int = Field(gt=0)
    rows: int | None = Field(default=None, gt=0, description="None: as many as `size`")
    compiled: bool = Field(default=False, description="by XLA, whose kernel is the faster one")
    flops_per_second: float = Field(gt=0, description="a multiply-add is two; of int8, integer operations")


class ConvolutionRate(Value):
    """How fast tf.nn.conv2d is: NHWC, stride 1, borders padded, as many channels out as in."""

    dtype: Name
    threads: Count
    kernel: int = Field(gt=0, description="its height, and its width")
    channels: int = Field(gt=0)
    positions: int = Field(gt=0, description="output pixels of all images of the batch")
    flops_per_second: float = Field(gt=0, description="those of the borders counted, too")


class Bandwidth(Value):
    """How fast bytes come from where a working set of this size stays, and go back."""

    threads: Count
    working_set: int = Field(gt=0, description="bytes")
    bytes_per_second: float = Field(gt=0)
    kind: Literal["pointwise", "weights"] = Field(
        description="each number read, and written in its place; or a matrix read once, by a product with a vector"
    )


class CallCost(Value):
    """What a call costs that computes next to nothing."""

    name: Name
    seconds: float = Field(gt=0)


class Refusal(Value):
    """What TensorFlow has no kernel for here, and its reason."""

    name: Name
    reason: Text


class Ceilings(Value):
    """What this machine can give. Immutable.

    Rates do not contain the dispatch of an operation, `call("graph op")`: what an operation takes is that, and the
    longer of its arithmetic at its rate and its traffic at its bandwidth.

    Source: S. Williams, A. Waterman, D. Patterson, "Roofline", CACM 52(4), 2009.
    """

    format: Literal["tfperf ceilings"] = FORMAT
    version: Literal[1] = VERSION
    environment: Environment
    device: Name = Field(default="CPU", description="where it was computed: CPU, or the GPU's name")
    quick: bool = Field(default=False, description="measured at fewer sizes, with fewer samples")
    products: tuple[ProductRate, ...]
    convolutions: tuple[ConvolutionRate, ...]
    bandwidths: tuple[Bandwidth, ...]
    calls: tuple[CallCost, ...]
    to_device_bytes_per_second: float | None = Field(default=None, gt=0, description="None: no device but the CPU")
    from_device_bytes_per_second: float | None = Field(default=None, gt=0)
    disk_read_bytes_per_second: float | None = Field(gt=0, description="None: no file could be written")
    loopback_seconds: float | None = Field(gt=0, description="a byte to another process over TCP, and back")
    loopback_bytes_per_second: float | None = Field(gt=0)
    refusals: tuple[Refusal, ...] = ()
    doubts: tuple[Doubt, ...] = ()

    @property
    def threads(self) -> tuple[int, ...]:
        """The numbers of threads that were measured."""
        return tuple(sorted({one.threads for one in self.products}))

    def peak(self, dtype: str, threads: int) -> float:
        """Floating-point operations a second of the fastest product.

        Raises:
            HardwareError: none of this type was measured with so many threads.
        """
        return max(one.flops_per_second for one in self._products(dtype, threads))

    def product_rate(self, m: int, n: int, k: int, dtype: str, threads: int) -> float:
        """Floating-point operations a second of a product (m, k) by (k, n).

        Between the sizes measured on logarithmic scales: by the smallest of the three, where it is thin, and by the
        geometric mean of the other two. What is smaller than all that was measured takes as long as the smallest.

        Raises:
            HardwareError: nothing of this type was measured with so many threads.
            ValueError: a size is under 1.
        """
        _check_sizes(m=m, n=n, k=k)
        cubes: dict[float, float] = {}
        thin: dict[float, dict[float, float]] = {}
        for one in self._products(dtype, threads):
            (cubes if one.rows is None else thin.setdefault(one.rows, {}))[one.size] = one.flops_per_second
        least, *others = sorted((m, n, k))
        side = math.sqrt(math.prod(others))
        if not thin:
            return _at(cubes, (m * n * k) ** (1 / 3), smaller=3)
        by_rows = {rows: _at(curve, side, smaller=2) for rows, curve in thin.items()}
        return _at({**by_rows, side: _at(cubes, side, smaller=3)}, least)

    def convolution_rate(self, kernel: int, channels: int, positions: int, dtype: str, threads: int) -> float:
        """Floating-point operations a second of a convolution, between the sizes measured on logarithmic scales.

        Args:
            kernel: height and width of the kernel; the square root of their product where they differ.
            channels: in and out; the square root of their product where they differ.
            positions: output pixels of all images of the batch.

        Raises:
            HardwareError: nothing of this type was measured with so many threads.
            ValueError: a size is under 1.
        """
        _check_sizes(kernel=kernel, channels=channels, positions=positions)
        measured: dict[float, dict[float, dict[float, float]]] = {}
        for one in self.convolutions:
            if (one.dtype, one.threads) == (dtype, threads):
                curves = measured.setdefault(one.kernel, {})
                curves.setdefault(one.channels, {})[one.positions] = one.flops_per_second
        if not measured:
            raise self._unmeasured("convolutions", dtype, threads)
        by_kernel = {
            side: _at({count: _at(curve, positions, smaller=1) for count, curve in curves.items()}, channels)
            for side, curves in measured.items()
        }
        return _at(by_kernel, kernel)

    def bandwidth(self, working_set: int, threads: int, kind: str = "pointwise") -> float:
        """Bytes a second from where a working set stays, between those measured on logarithmic scales.

        Args:
            working_set: bytes that are in use again and again; beyond the largest measured it is as that.
            kind: "pointwise" or "weights".

        Raises:
            HardwareError: nothing of this kind was measured with so many threads.
            ValueError: the working set is under 1.
        """
        _check_sizes(working_set=working_set)
        curve: dict[float, float] = {
            one.working_set: one.bytes_per_second
            for one in self.bandwidths
            if (one.kind, one.threads) == (kind, threads)
        }
        if not curve:
            raise self._unmeasured("bandwidths", kind, threads)
        return _at(curve, working_set)

    def call(self, name: str) -> float:
        """Seconds of a call.

        Raises:
            HardwareError: none of this name was measured.
        """
        for one in self.calls:
            if one.name == name:
                return one.seconds
        raise HardwareError(f"expected a call of {_listed(one.name for one in self.calls)}. Received: {name}")

    def _products(self, dtype: str, threads: int) -> list[ProductRate]:
        found = [one for one in self.products if (one.dtype, one.threads) == (dtype, threads)]
        if not found:
            raise self._unmeasured("products", dtype, threads)
        return found

    def _unmeasured(self, what: str, kind: str, threads: int) -> HardwareError:
        """Why there is no answer, with what there is."""
        reason = next((f" ({one.reason})" for one in self.refusals if one.name == f"{kind} {what}"), "")
        counts = _listed(str(count) for count in self.threads)
        return HardwareError(
            f"no {what} were measured in {kind} with {thread_words(threads)}{reason}; threads measured: {counts}"
        )


def thread_words(count: int) -> str:
    """As "2 threads"."""
    return f"{count} thread{'s' * (count > 1)}"


def _at(curve: Curve, size: float, smaller: int | None = None) -> float:
    """The value at a size, on logarithmic scales; beyond the largest it is as there.

    Args:
        smaller: power of the size with which the work grows: a smaller one than the smallest takes the same time, so
            that the rate falls with the work. None: the rate is as at the smallest.
    """
    sizes = sorted(curve)
    if size <= sizes[0]:
        return curve[sizes[0]] * ((size / sizes[0]) ** smaller if smaller else 1.0)
    for low, high in itertools.pairwise(sizes):
        if size <= high:
            share = math.log(size / low) / math.log(high / low)
            return math.exp((1 - share) * math.log(curve[low]) + share * math.log(curve[high]))
    return curve[sizes[-1]]


def _check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if not size >= 1:
            raise ValueError(f"expected {name} of 1 or more. Received: {name}={size}")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(names)) or "none"
