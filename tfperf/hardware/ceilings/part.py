"""What one process with one number of threads measures of the ceilings."""

from tfperf.hardware.ceilings import Bandwidth, CallCost, ConvolutionRate, ProductRate, Refusal
from tfperf.measure import Environment
from tfperf.measure.value import Name, Value

__all__ = ["Part"]


class Part(Value):
    """The figures of one process; immutable."""

    environment: Environment
    device: Name
    products: tuple[ProductRate, ...]
    convolutions: tuple[ConvolutionRate, ...]
    bandwidths: tuple[Bandwidth, ...]
    calls: tuple[CallCost, ...]
    to_device_bytes_per_second: float | None
    from_device_bytes_per_second: float | None
    refusals: tuple[Refusal, ...]
    passes: dict[Name, tuple[float, ...]]
    """Seconds of one operation in each pass, by what it is called."""
