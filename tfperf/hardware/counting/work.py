"""What is to be computed and moved, in numbers that no machine changes, and by which layer of a net."""

import re
from collections.abc import Iterable, Sequence
from typing import Self

from pydantic import Field

from tfperf.measure.value import Count, Name, Value

__all__ = ["OUTSIDE", "Work", "by_layer", "layer_of"]

OUTSIDE = "outside the layers"
"""Where operations are that no layer has made, as a loss."""


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


def layer_of(operation: str, layers: Iterable[str]) -> str | None:
    """The layer whose name is in the path of an operation's; None: none.

    Args:
        operation: as "gradient_tape/mlp_1/hidden_1_1/MatMul". A scope that a graph has already is numbered.
        layers: names, of one level of the net.
    """
    known = set(layers)
    for part in operation.split("/"):
        for name in (part, re.sub(r"_\d+$", "", part)):
            if name in known:
                return name
    return None


def by_layer(operations: Sequence[Work], layers: Sequence[str]) -> list[Work]:
    """What each layer computes and moves, in the order of the layers; what is outside comes last.

    Args:
        operations: of `graph_work` or `hlo_work`.
        layers: names, of one level of the net. Those without work are left out.
    """
    parts: dict[str, list[Work]] = {name: [] for name in (*layers, OUTSIDE)}
    for operation in operations:
        parts[layer_of(operation.name, layers) or OUTSIDE].append(operation)
    return [Work.sum(name, works) for name, works in parts.items() if works]
