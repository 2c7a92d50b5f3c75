"""What is to be computed and moved, in numbers that no machine changes."""

from collections.abc import Iterable
from typing import Self

from pydantic import Field

from tfperf.measure.value import Count, Name, Value

__all__ = ["Work"]


class Work(Value):
    """Arithmetic and traffic of an operation, of a layer, or of a whole net. Immutable.

    Source: S. Williams, A. Waterman, D. Patterson, "Roofline", CACM 52(4), 2009, for the arithmetic intensity.
    """

    name: Name
    flops: Count = Field(description="floating-point operations; a multiply-add is two")
    products: Count = Field(description="those of them in matrix products and convolutions")
    read: Count = Field(description="bytes, each tensor that an operation takes once")
    written: Count = Field(description="bytes")
    operations: Count = Field(description="that compute or move something: each costs a dispatch")

    @property
    def bytes(self) -> int:
        """Read and written."""
        return self.read + self.written

    @property
    def intensity(self) -> float:
        """Floating-point operations for each byte that is moved; infinite where none is."""
        return self.flops / self.bytes if self.bytes else float("inf")

    def times(self, turns: float) -> "Work":
        """The same again and again, as in a loop."""
        fields = ("flops", "products", "read", "written", "operations")
        return self.model_copy(update={field: round(turns * getattr(self, field)) for field in fields})

    @classmethod
    def sum(cls, name: str, parts: Iterable[Self]) -> "Work":
        """All parts together, as if each tensor left the processor between two of them."""
        listed = list(parts)
        fields = ("flops", "products", "read", "written", "operations")
        return cls(name=name, **{field: sum(getattr(part, field) for part in listed) for field in fields})
