"""What one process with one number of threads is to measure of the ceilings, and what it has measured."""

from pydantic import Field

from tfperf.hardware.ceilings import Bandwidth, CallCost, ProductRate, Refusal
from tfperf.measure import Environment
from tfperf.measure.value import Count, Name, Value

__all__ = ["Order", "Part"]


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
