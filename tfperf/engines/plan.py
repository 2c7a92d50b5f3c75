"""How to run a net."""

from typing import Literal, Self, get_args

from pydantic import Field, model_validator

from tfperf.measure.value import Name, Value
from tfperf.system import thread_words

__all__ = ["PRECISIONS", "TRANSFORMATIONS", "Plan", "Precision", "Transformation"]

Precision = Literal["float32", "bfloat16", "float16", "int8", "int8_static"]
"""What is computed in. int8: weights in int8, activations scaled as they come (dynamic range); int8_static: both,
scaled by what representative inputs showed."""

PRECISIONS: tuple[Precision, ...] = get_args(Precision)

Transformation = Literal["fold_batch_norm", "fuse_batch_norm", "constant_weights", "fixed_batch"]
"""What is changed in a net and leaves its function as it is. fold_batch_norm: a batch normalization that follows a
convolution or dense layer becomes part of its weights; fuse_batch_norm: the others become one operation each;
constant_weights: variables become constants, which compilers can compute with; fixed_batch: the size of the batch, open
otherwise, is the plan's."""

TRANSFORMATIONS: tuple[Transformation, ...] = get_args(Transformation)

MOST_THREADS = 4096
"""Linux's own limit of processors; an engine that is asked for more starts them, and ends the process."""


class Plan(Value):
    """An engine with its settings. Immutable."""

    engine: Name
    precision: Precision = "float32"
    threads: int | None = Field(
        default=None, ge=1, le=MOST_THREADS, description="None: as many as the engine takes by itself"
    )
    batch: int | None = Field(default=None, ge=1, lt=2**31, description="None: any, call by call")
    transformations: tuple[Transformation, ...] = Field(default=(), description="in the order of TRANSFORMATIONS")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if list(self.transformations) != [one for one in TRANSFORMATIONS if one in self.transformations]:
            raise ValueError(f"expected each once, in the order {', '.join(TRANSFORMATIONS)}")
        if "fixed_batch" in self.transformations and self.batch is None:
            raise ValueError("expected a batch for fixed_batch, as in Plan(..., batch=1)")
        return self

    @property
    def fixed_batch(self) -> int | None:
        """The batch size that is part of what is converted; None: it stays open there."""
        return self.batch if "fixed_batch" in self.transformations else None

    @property
    def settings(self) -> tuple[str, ...]:
        """What it says beside the engine, in words: ("bfloat16", "2 threads", "batch 64")."""
        parts: list[str] = []
        if self.precision != "float32":
            parts.append(self.precision)
        parts += [transformation.replace("_", " ") for transformation in self.transformations]
        if self.threads is not None:
            parts.append(thread_words(self.threads))
        if self.batch is not None:
            parts.append(f"batch {self.batch}")
        return tuple(parts)

    def __str__(self) -> str:
        return ", ".join((self.engine, *self.settings))
