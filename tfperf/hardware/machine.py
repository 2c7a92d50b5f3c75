"""All that `tfperf hardware` has measured of a machine, as one document."""

from typing import Literal

from pydantic import Field

from tfperf.hardware.ceilings import Ceilings
from tfperf.hardware.ladder import Ladder
from tfperf.measure.value import Value

__all__ = ["Machine"]

FORMAT: Literal["tfperf hardware"] = "tfperf hardware"
VERSION: Literal[2] = 2
"""It rises with that of its parts."""


class Machine(Value):
    """What a machine can give, and how far its memory is. Immutable."""

    format: Literal["tfperf hardware"] = FORMAT
    version: Literal[2] = VERSION
    ceilings: Ceilings
    ladder: Ladder | None = Field(description="None: Numba, which compiles its loops, was missing")
