"""What a machine can give, as it was measured through TensorFlow, and what that says of other sizes. No TensorFlow."""

import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Literal

from pydantic import Field

from tfperf.errors import HardwareError
from tfperf.measure import Doubt, Environment
from tfperf.measure.value import Count, Name, Text, Value
from tfperf.system import thread_words

__all__ = ["Bandwidth", "CallCost", "Ceilings", "Order", "Part", "ProductRate", "Refusal"]

FORMAT: Literal["tfperf ceilings"] = "tfperf ceilings"
VERSION: Literal[3] = 3
"""It rises with every change of the fields. 2: convolutions and thin products are gone, working sets are shared out.
3: each figure says whether it was repeatable."""


class Figure(Value):
    """Something that was measured in several passes."""

    repeatable: bool = Field(default=True, description="two passes agreed within 5 %")


class ProductRate(Figure):
    """How fast matrices are multiplied: (rows, size) by (size, size)."""

    dtype: Name
    threads: Count
    size: int = Field(gt=0)
    rows: int | None = Field(default=None, gt=0, description="None: as many as `size`")
    compiled: bool = Field(default=False, description="by XLA, whose kernel is the faster one")
    flops_per_second: float = Field(gt=0, description="a multiply-add is two; of int8, integer operations")


class Bandwidth(Figure):
    """How fast bytes come from where a working set of this size stays, and go back."""

    threads: Count = Field(description="on a CPU each has a thread's operation of its own, on its share of the set")
    working_set: int = Field(gt=0, description="bytes")
    bytes_per_second: float = Field(gt=0)
    kind: Literal["pointwise", "weights"] = Field(
        description="each number read, and written in its place; or a matrix read once, by a product with a vector"
    )


class CallCost(Figure):
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
    version: Literal[3] = VERSION
    environment: Environment
    device: Name = Field(default="CPU", description="where it was computed: CPU, or the GPU's name")
    quick: bool = Field(default=False, description="measured at fewer sizes, with fewer samples")
    products: tuple[ProductRate, ...]
    bandwidths: tuple[Bandwidth, ...]
    calls: tuple[CallCost, ...]
    to_device_bytes_per_second: float | None = Field(default=None, gt=0, description="None: no device but the CPU")
    from_device_bytes_per_second: float | None = Field(default=None, gt=0)
    disk_read_bytes_per_second: float | None = Field(gt=0, description="None: no file could be written")
    loopback_seconds: float | None = Field(gt=0, description="a byte to another process over TCP, and back")
    loopback_bytes_per_second: float | None = Field(gt=0)
    disk_repeatable: bool = Field(default=True, description="two passes agreed within 5 %; so the next")
    loopback_repeatable: bool = True
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

    def bandwidth(self, working_set: int, threads: int, kind: str = "pointwise") -> float:
        """Bytes a second from where a working set stays, between those measured on logarithmic scales.

        Args:
            working_set: bytes that are in use again and again; beyond the largest measured it is as that.
            kind: "pointwise" or "weights".

        Raises:
            HardwareError: nothing of this kind was measured with so many threads.
            ValueError: the working set is under 1.
        """
        if not working_set >= 1:
            raise ValueError(f"expected a working set of 1 byte or more. Received: working_set={working_set}")
        curve = {
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


class Order(Value):
    """What a process is to measure; immutable."""

    threads: Count = Field(description="that TensorFlow gives an operation; products are measured with them")
    quick: bool = Field(default=False, description="fewer sizes and samples")
    memory: tuple[Count, ...] = Field(default=(), description="numbers of operations at a time that share a memory")
    calls: bool = Field(default=True, description="as well what calls cost")


class Part(Value):
    """The figures of one process; immutable."""

    environment: Environment
    device: Name
    products: tuple[ProductRate, ...]
    bandwidths: tuple[Bandwidth, ...]
    calls: tuple[CallCost, ...]
    to_device_bytes_per_second: float | None
    from_device_bytes_per_second: float | None
    refusals: tuple[Refusal, ...]
    passes: dict[Name, tuple[float, ...]]
    """Seconds of one operation in each pass, by what it is called."""


def _at(curve: Mapping[int, float], size: int) -> float:
    """The value at a size, on logarithmic scales; beyond the sizes that were measured it is as at the nearest."""
    sizes = sorted(curve)
    for low, high in itertools.pairwise(sizes):
        if low <= size <= high:
            share = math.log(size / low) / math.log(high / low)
            return math.exp((1 - share) * math.log(curve[low]) + share * math.log(curve[high]))
    return curve[sizes[0] if size < sizes[0] else sizes[-1]]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(names)) or "none"
