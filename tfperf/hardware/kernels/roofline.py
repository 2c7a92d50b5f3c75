"""What an operation, a layer or a call is bound by: arithmetic, bandwidth, or what starting and calling costs."""

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

__all__ = ["Bound", "Cost", "Spent"]


class Bound(StrEnum):
    """What a time would fall with."""

    COMPUTE = "compute"
    BANDWIDTH = "bandwidth"
    OVERHEAD = "overhead"

    @property
    def adjective(self) -> str:
        """The adjective: "the call is compute-bound"."""
        return f"{self.value}-bound"


class Cost(NamedTuple):
    """The seconds that a kernel is predicted to take, and the least that each of its parts takes."""

    seconds: float
    compute: float
    """Its floating-point operations at the machine's peak."""
    traffic: float
    """Its bytes at the bandwidth of where they stay."""
    start: float
    """The seconds of the smallest kernel of its kind."""

    @property
    def bound(self) -> Bound:
        """The largest part."""
        if self.start >= max(self.compute, self.traffic):
            return Bound.OVERHEAD
        return Bound.COMPUTE if self.compute >= self.traffic else Bound.BANDWIDTH


class Spent(NamedTuple):
    """Measured seconds by what they are bound by."""

    compute: float
    bandwidth: float
    overhead: float

    @classmethod
    def of(cls, kernels: Iterable[tuple[Cost, float]], between: float = 0.0) -> "Spent":
        """What kernels spend: each its start as overhead, the rest as its larger part.

        Args:
            kernels: costs, with the seconds that were measured.
            between: seconds of a call that no kernel takes.
        """
        compute = bandwidth = 0.0
        overhead = max(0.0, between)
        for cost, seconds in kernels:
            start = min(cost.start, seconds)
            overhead += start
            if cost.compute >= cost.traffic:
                compute += seconds - start
            else:
                bandwidth += seconds - start
        return cls(compute, bandwidth, overhead)

    @property
    def bound(self) -> Bound:
        """What the largest part is bound by."""
        return max(Bound, key=self.share)

    def share(self, bound: Bound) -> float:
        """From 0 to 1; 0 where no time is spent."""
        whole = sum(self)
        return float(getattr(self, bound)) / whole if whole else 0.0
