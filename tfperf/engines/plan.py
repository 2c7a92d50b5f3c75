"""How to run a net."""

from typing import Literal, get_args

from pydantic import Field

from tfperf.measure.value import Name, Value

__all__ = ["PRECISIONS", "Plan", "Precision"]

Precision = Literal["float32", "bfloat16", "float16", "int8", "int8_static"]
"""What is computed in. int8: weights in int8, activations scaled as they come (dynamic range); int8_static: both,
scaled by what representative inputs showed."""

PRECISIONS: tuple[Precision, ...] = get_args(Precision)


class Plan(Value):
    """An engine with its settings. Immutable."""

    engine: Name
    precision: Precision = "float32"
    threads: int | None = Field(default=None, ge=1, description="None: as many as the engine takes by itself")
    batch: int | None = Field(default=None, ge=1, description="None: any, call by call")

    def __str__(self) -> str:
        parts: list[str] = [self.engine]
        if self.precision != "float32":
            parts.append(self.precision)
        if self.threads is not None:
            parts.append(f"{self.threads} thread{'s' * (self.threads > 1)}")
        if self.batch is not None:
            parts.append(f"batch {self.batch}")
        return ", ".join(parts)
