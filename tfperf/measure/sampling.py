"""Taking samples of one piece of work until its time is known well enough."""

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from tfperf.errors import MeasurementError
from tfperf.measure import statistics
from tfperf.measure.clock import Clock, Synchronizer, device_synchronizer, read_cost, wait_for_devices, wall_clock
from tfperf.measure.doubts import MOST_READ_COST, Evidence, doubts_about
from tfperf.measure.environment import Conditions, Environment, Watch
from tfperf.measure.measurement import CONFIDENCE, Measurement, Stop
from tfperf.measure.memory import MemoryPeak, PeakMemory
from tfperf.measure.value import check_name

__all__ = ["Progress", "Sampler", "TimesItself", "measure"]

PRECISION = 0.01
"""Half width of a median's interval, as a share of the median, at which sampling may end."""

TIME_LIMIT = 10.0
"""Seconds for warm-up and sampling together; the first call comes before and is not counted."""

MIN_SAMPLES = 30
"""Samples taken before the precision is believed, unless the time is up."""

MIN_SECONDS = 0.25
"""Seconds sampled before the precision is believed: noise has bursts, and a lucky lull is not quiet."""

SAMPLE_LIMIT = 20_000
"""Most samples kept of one piece of work; three times what p99.9 needs."""

LONG_SAMPLE = 0.25
"""Seconds of a sample that are long beside whatever asking another process takes."""

WARM_UP_SECONDS = 0.1
"""Seconds of calls before the calibration, so that what it calibrates is the steady work."""

MOST_CALLS_PER_SAMPLE = 10_000_000
"""A clock that has not moved after so many calls does not move."""

ASKINGS = 5
"""Times what asking another process for its seconds takes, that a sample of its work lasts at least: the work is cold
after each request, and in use, called again and again, it would not be."""

LOOK_GROWTH = 1.25
"""Factor by which the samples grow between two looks at the interval."""


class Progress(NamedTuple):
    """How far sampling has come, for a display."""

    samples: int
    seconds: float
    """Spent since the first call."""
    time_limit: float
    half_width: float
    """The half width of the widest interval so far, as a share; infinite before the first look."""


@runtime_checkable
class TimesItself(Protocol):
    """Work whose seconds only it can tell, because another process does it."""

    def __call__(self) -> object:
        """Do it once."""

    def timed(self, calls: int) -> float:
        """Seconds of so many calls together."""

    def memory(self) -> MemoryPeak:
        """The most memory in use where the work is done."""


class Sampler:
    """Takes samples of one function with one clock, and makes a Measurement of them.

    Attributes:
        clock: returns seconds.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        clock: Clock = wall_clock,
        synchronize: Synchronizer | None = None,
    ) -> None:
        """Call the function for the first time and time that; tracing, compiling and allocating happen now.

        Args:
            name: what the measurement is called.
            function: the work; called with `args` and `kwargs`, its result is dropped. One that `TimesItself` is
                asked for its seconds instead.
            clock: returns seconds.
            synchronize: returns when the devices are done; None: whatever this process turns out to need.

        Raises:
            TypeError: the function cannot be called.
            ValueError: the name is not one.
        """
        check_name(name)
        if not callable(function):
            raise TypeError(f"expected a callable to measure as '{name}'. Received: {type(function).__name__}")
        keywords = dict(kwargs or {})
        self.name = name
        self._function = functools.partial(function, **keywords) if keywords else function
        self._args = tuple(args)
        self.clock = clock
        self._elsewhere = function if isinstance(function, TimesItself) else None
        self._peak = PeakMemory()
        self.memory = self._peak.read()
        # What the function loads decides how it must be waited for, so the first wait looks that up.
        self._synchronize = synchronize or wait_for_devices
        self.first_call_seconds = self._timed(1)
        self._synchronize = synchronize or device_synchronizer()
        self.calls_per_sample = 1
        self.read_cost = 0.0

    def calibrate(self, warm_up_seconds: float = WARM_UP_SECONDS) -> float:
        """Warm up, and choose the calls per sample: the fewest for which reading the clock costs under 0.1 %.

        The fewest, because a sample of many calls hides the slow ones among them. Where another process times the
        work, a sample is long beside the asking.

        Returns:
            Seconds per call of the last sample taken.

        Raises:
            MeasurementError: the clock does not move.
        """
        self.read_cost = read_cost(self.clock, self._synchronize)
        calls, spent, asking = 1, 0.0, math.inf
        while True:
            began = self.clock()
            seconds = self._timed(calls)
            asking = min(asking, self.clock() - began - seconds) if self._elsewhere else 0.0
            needed = max(self.read_cost / MOST_READ_COST, min(ASKINGS * asking, LONG_SAMPLE))
            spent += seconds
            long_enough = seconds > 0 and seconds >= needed
            if long_enough and spent >= warm_up_seconds:
                break
            if not long_enough:
                calls *= 2
            if calls > MOST_CALLS_PER_SAMPLE:
                raise MeasurementError(
                    f"the clock stood still over {calls // 2} calls of '{self.name}'; pass another clock"
                )
        seconds_per_call = seconds / calls
        if calls > 1:
            fastest = min(self._timed(calls) for _ in range(3)) / calls
            # Half as many again: work that gets a little faster later must not fall below the limit.
            calls = min(calls, math.ceil(1.5 * needed / fastest)) if fastest > 0 else calls
        self.calls_per_sample = calls
        self.note_memory()
        return seconds_per_call

    def note_memory(self) -> None:
        """Keep the most memory used since the first call; valid until another sampler's first call."""
        self.memory = self._elsewhere.memory() if self._elsewhere else self._peak.read()

    def sample(self) -> float:
        """Seconds per call of one sample.

        Raises:
            MeasurementError: the clock did not move forward.
        """
        seconds = self._timed(self.calls_per_sample)
        if seconds <= 0:
            raise MeasurementError(f"a sample of '{self.name}' took {seconds} s; pass a clock that moves forward")
        return seconds / self.calls_per_sample

    def call(self) -> None:
        """One call that is not timed."""
        self._function(*self._args)

    def measurement(
        self,
        samples: Sequence[float],
        *,
        dropped: int,
        samples_per_turn: int,
        precision: float,
        stopped: Stop,
        environment: Environment,
        conditions: Conditions,
    ) -> Measurement:
        """The measurement that these samples make, with its doubts.

        Args:
            samples: seconds per call, in order, whole turns.
            dropped: how many turns at the start are warm-up.
        """
        cut = dropped * samples_per_turn
        turns = np.median(np.reshape(samples[cut:], (-1, samples_per_turn)), axis=1)
        evidence = Evidence(
            samples=turns,
            sample_seconds=float(np.median(turns)) * self.calls_per_sample,
            dropped=dropped,
            precision=precision,
            stopped=stopped,
            read_cost=self.read_cost,
            environment=environment,
            conditions=conditions,
        )
        return Measurement(
            name=self.name,
            seconds=tuple(samples[cut:]),
            calls_per_sample=self.calls_per_sample,
            samples_per_turn=samples_per_turn,
            first_call_seconds=self.first_call_seconds,
            warm_up_seconds=tuple(samples[:cut]),
            precision=precision,
            stopped=stopped,
            read_cost_seconds=self.read_cost,
            memory=self.memory,
            environment=environment,
            conditions=conditions,
            doubts=doubts_about(evidence),
        )

    def _timed(self, calls: int) -> float:
        """Seconds of so many calls together."""
        if self._elsewhere:
            return self._elsewhere.timed(calls)
        function, args, clock, synchronize = self._function, self._args, self.clock, self._synchronize
        loop = itertools.repeat(None, calls)
        synchronize()
        start = clock()
        for _ in loop:
            function(*args)
        synchronize()
        return clock() - start


def measure(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    name: str = "work",
    precision: float = PRECISION,
    time_limit: float = TIME_LIMIT,
    min_samples: int = MIN_SAMPLES,
    clock: Clock = wall_clock,
    synchronize: Synchronizer | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Measurement:
    """How long one call of a function takes, measured alone.

    Sampling ends when the median is known to `precision`, when more samples no longer make it better
    known, or when the time is up; `stopped` of the result says which. To compare two functions use
    `compare`, which measures them side by side: two times taken one after the other differ also by
    what the machine did meanwhile.

    Args:
        function: the work, called with `args` and `kwargs`; its result is dropped.
        name: what the result is called.
        precision: half width of the median's 95 % interval to reach, as a share of the median.
        time_limit: seconds for warm-up and sampling; the first call comes before.
        min_samples: samples to take at least, unless the time is up; 662 for a p99.
        clock: returns seconds.
        synchronize: waits for the devices before each reading; None: found from what is loaded.
        on_progress: called now and then, outside the samples.

    Raises:
        MeasurementError: the clock does not move.
        ValueError: a limit that is not positive.
    """
    check_limits(precision=precision, time_limit=time_limit, min_samples=min_samples)
    environment, watch = Environment.here(), Watch()
    sampler = Sampler(name, function, args, kwargs, clock=clock, synchronize=synchronize)
    began = clock()
    sampler.calibrate(min(WARM_UP_SECONDS, time_limit / 4))
    samples: list[float] = []
    half_widths: list[tuple[int, float]] = []
    next_look = min_samples
    stopped: Stop | None = None
    while stopped is None:
        samples.append(sampler.sample())
        spent = clock() - began
        if len(samples) >= next_look and spent >= MIN_SECONDS:
            next_look = math.ceil(len(samples) * LOOK_GROWTH)
            kept = samples[statistics.warm_up_length(samples) :]
            half_width = statistics.median_interval(kept, CONFIDENCE).relative_half_width
            half_widths.append((len(kept), half_width))
            if on_progress:
                on_progress(Progress(len(samples), spent, time_limit, half_width))
            if len(kept) >= min_samples:
                stopped = reason_to_stop(half_width <= precision, half_widths)
        if stopped is None and spent >= time_limit:
            stopped = Stop.TIME_LIMIT
        if stopped is None and len(samples) >= SAMPLE_LIMIT:
            stopped = Stop.SAMPLE_LIMIT
    sampler.note_memory()
    return sampler.measurement(
        samples,
        dropped=statistics.warm_up_length(samples),
        samples_per_turn=1,
        precision=precision,
        stopped=stopped,
        environment=environment,
        conditions=watch.conditions(),
    )


def reason_to_stop(precise: bool, half_widths: Sequence[tuple[int, float]]) -> Stop | None:
    """Why sampling may end after this look at the intervals; None: it may not.

    The noise has stopped falling when four times the samples have not made the interval a fifth
    narrower, nor twice the samples a tenth; with independent samples it would be half as wide.

    Args:
        precise: whether the precision asked for is reached.
        half_widths: number of samples and relative half width of the interval, at each look so far.
    """
    if precise:
        return Stop.PRECISION
    count, now = half_widths[-1]
    at_quarter = [width for n, width in half_widths if n <= count / 4]
    at_half = [width for n, width in half_widths if n <= count / 2]
    if at_quarter and now > 0.8 * at_quarter[-1] and now > 0.9 * at_half[-1]:
        return Stop.NOISE_FLOOR
    return None


def check_limits(**limits: float) -> None:
    """Refuse limits that no measurement can keep.

    Raises:
        ValueError: one of them is not above 0.
    """
    for name, value in limits.items():
        if not value > 0:
            raise ValueError(f"expected {name} above 0. Received: {name}={value}")
