"""Benchmark: the clock of the source's examples, and the door to a full measurement."""

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from tfperf.measure.clock import Clock, Synchronizer, wait_for_devices, wall_clock
from tfperf.measure.measurement import Measurement
from tfperf.measure.sampling import MIN_SAMPLES, PRECISION, TIME_LIMIT, Progress, measure

__all__ = ["Benchmark"]


class Benchmark:
    """Times a block of code, or measures a function.

    As a context manager it prints how long the block took, once, first call included::

        with Benchmark("eager"):
            for _ in range(1000):
                net(x)
        # eager: 1.2769 sec

    `measure` takes many samples of one call, and knows how far to trust them::

        Benchmark("eager").measure(net, x)
    """

    def __init__(
        self,
        description: str = "Done",
        *,
        precision: float = PRECISION,
        time_limit: float = TIME_LIMIT,
        min_samples: int = MIN_SAMPLES,
        clock: Clock = wall_clock,
        synchronize: Synchronizer | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> None:
        """Prepare, time nothing. The settings other than `description` are those of `tfperf.measure.measure`."""
        self.description = description
        self.seconds: float | None = None
        """Seconds the block took; None until it has ended without an error."""
        self._precision = precision
        self._time_limit = time_limit
        self._min_samples = min_samples
        self._clock = clock
        self._synchronize = synchronize
        self._on_progress = on_progress

    def __enter__(self) -> Self:
        self.seconds = None
        (self._synchronize or wait_for_devices)()
        self._start = self._clock()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:  # the time of a block that failed says nothing
            return
        (self._synchronize or wait_for_devices)()
        self.seconds = self._clock() - self._start
        print(f"{self.description}: {self.seconds:.4f} sec")

    def measure(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Measurement:
        """How long `function(*args, **kwargs)` takes; see `tfperf.measure.measure`."""
        return measure(
            function,
            args,
            kwargs,
            name=self.description,
            precision=self._precision,
            time_limit=self._time_limit,
            min_samples=self._min_samples,
            clock=self._clock,
            synchronize=self._synchronize,
            on_progress=self._on_progress,
        )
