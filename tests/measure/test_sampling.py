"""tfperf.measure.sampling on a fake machine: nothing here sleeps, and time passes only where fake work is done."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfperf.errors import MeasurementError
from tfperf.measure import sampling
from tfperf.measure.doubts import MOST_READ_COST
from tfperf.measure.measurement import Stop
from tfperf.measure.memory import MemoryPeak
from tfperf.measure.sampling import Sampler, TimesItself, measure, reason_to_stop


@pytest.fixture
def machine(fake):
    """A machine without noise, and a reading of its clock takes 100 ns."""
    return fake.FakeMachine(read_cost=1e-7)


@pytest.fixture
def measured(fake):
    """Measures fake work on a fake machine."""

    def run(machine, function, **settings):
        return measure(function, clock=machine.clock, synchronize=fake.nothing, **settings)

    return run


def noise(kind: str, count: int = 20_000) -> np.ndarray:
    """Factors around 1 of a known kind."""
    generator = np.random.default_rng(0)
    if kind == "walk":  # drifts ever further away: no number of samples makes its median known
        return np.exp(np.cumsum(generator.normal(0, 0.02, size=count)))
    return generator.lognormal(0, {"small": 0.01, "large": 1.0}[kind], size=count)


# ---------------------------------------------------------------- devices


def test_device_work_is_waited_for(machine, fake) -> None:
    device = fake.FakeDevice(machine)
    result = measure(device.work(0.005), clock=machine.clock, synchronize=device.synchronize)
    assert result.median == pytest.approx(0.005, rel=0.001)  # without the wait: the microsecond of the launch
    assert result.first_call_seconds == pytest.approx(0.005, rel=0.001)
    assert device.waits >= 2 * len(result.seconds)


def test_many_launches_in_a_sample_are_waited_for_once(machine, fake) -> None:
    device = fake.FakeDevice(machine, dispatch_seconds=1e-6)
    result = measure(device.work(2e-6), clock=machine.clock, synchronize=device.synchronize)
    assert result.calls_per_sample > 1
    assert result.median == pytest.approx(2e-6, rel=0.02)  # launches overlap the work, as in use


def test_work_queued_before_is_not_counted(machine, fake) -> None:
    device = fake.FakeDevice(machine)
    device.work(100.0)()
    result = measure(device.work(0.005), clock=machine.clock, synchronize=device.synchronize)
    assert result.first_call_seconds == pytest.approx(0.005, rel=0.001)


# ---------------------------------------------------------------- calibration


@given(
    work=st.floats(min_value=1e-9, max_value=0.1),
    share=st.floats(min_value=1e-6, max_value=1.0),
)
@settings(max_examples=60, deadline=None)
def test_the_timer_costs_under_a_thousandth(fake, work: float, share: float) -> None:
    read_cost = share * work
    machine = fake.FakeMachine(read_cost=read_cost)
    sampler = Sampler("work", machine.work(work), clock=machine.clock, synchronize=fake.nothing)
    sampler.calibrate(warm_up_seconds=100 * work)
    sample_seconds = sampler.calls_per_sample * work
    assert sampler.read_cost == pytest.approx(read_cost, rel=1e-3)
    # 0.1 % of the time read, of which the reading is a part.
    assert read_cost <= MOST_READ_COST * (sample_seconds + read_cost) * (1 + 1e-6)
    # And no more calls than that needs, as they hide the slow ones among them.
    assert sampler.calls_per_sample <= max(1, 1 + 2 * read_cost / MOST_READ_COST / work)


@pytest.mark.parametrize("seconds", [1e-3, 0.5])
def test_long_work_is_timed_call_by_call(machine, measured, seconds: float) -> None:
    assert measured(machine, machine.work(seconds)).calls_per_sample == 1


def test_a_slow_start_does_not_fool_the_calibration(machine, fake) -> None:
    calls = itertools.count()
    sampler = Sampler(
        "work",
        lambda: machine.spend(1e-3 if next(calls) < 50 else 1e-6),
        clock=machine.clock,
        synchronize=fake.nothing,
    )
    sampler.calibrate()
    assert sampler.read_cost <= MOST_READ_COST * sampler.calls_per_sample * 1e-6 * 1.001


def test_the_synchronizer_counts_as_cost(machine, fake) -> None:
    def slow_wait() -> None:
        machine.spend(1e-5)

    result = measure(machine.work(1e-6), clock=machine.clock, synchronize=slow_wait)
    assert result.read_cost_seconds == pytest.approx(1e-5, rel=0.02)
    assert result.calls_per_sample >= 1e-5 / MOST_READ_COST / 1e-6 * 0.9
    assert result.median == pytest.approx(1e-6, rel=0.002)


def test_a_standing_clock_is_refused(monkeypatch: pytest.MonkeyPatch, fake) -> None:
    monkeypatch.setattr(sampling, "MOST_CALLS_PER_SAMPLE", 1000)
    with pytest.raises(MeasurementError, match=r"the clock stood still over \d+ calls of 'loop'; pass another clock"):
        measure(lambda: None, name="loop", clock=lambda: 1.0, synchronize=fake.nothing)


def test_a_clock_that_goes_backwards_is_refused(machine, fake) -> None:
    sampler = Sampler("work", machine.work(1e-3), clock=machine.clock, synchronize=fake.nothing)
    sampler.calibrate()
    readings = iter([5.0, 4.0])
    sampler.clock = lambda: next(readings)
    with pytest.raises(MeasurementError, match="a clock that moves forward"):
        sampler.sample()


# ---------------------------------------------------------------- why it stops


def test_it_stops_at_the_precision(fake, measured) -> None:
    machine = fake.FakeMachine(noise("small"))
    result = measured(machine, machine.work(1e-3))
    assert result.stopped is Stop.PRECISION
    assert result.interval.relative_half_width <= 0.01
    assert machine.time < 2


def test_a_finer_precision_takes_more_samples(fake, measured) -> None:
    counts = []
    for precision in (0.02, 0.0005):
        machine = fake.FakeMachine(noise("small"))
        counts.append(len(measured(machine, machine.work(1e-3), precision=precision).seconds))
    assert counts[1] > 3 * counts[0]


def test_it_stops_where_more_samples_do_not_help(fake, measured) -> None:
    machine = fake.FakeMachine(noise("walk"))
    result = measured(machine, machine.work(1e-3), time_limit=1000)
    assert result.stopped is Stop.NOISE_FLOOR
    assert any(doubt.name in ("vague", "drift", "dependent_samples") for doubt in result.doubts)


def test_it_stops_when_the_time_is_up(fake, measured) -> None:
    machine = fake.FakeMachine(noise("large"))
    assert measured(machine, machine.work(0.05), time_limit=3, precision=1e-6).stopped is Stop.TIME_LIMIT


def test_it_stops_at_as_many_samples_as_are_kept(fake, measured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "SAMPLE_LIMIT", 100)
    machine = fake.FakeMachine(noise("large"))
    result = measured(machine, machine.work(1e-3), precision=1e-6)
    assert result.stopped is Stop.SAMPLE_LIMIT
    assert len(result.seconds) + len(result.warm_up_seconds) == 100


def test_a_lucky_lull_is_not_believed(fake, measured) -> None:
    factors = np.ones(1000)
    factors[100:] = 3.0  # 30 quiet samples of 1 ms would do, if it did not ask for a quarter of a second
    machine = fake.FakeMachine(factors)
    assert machine.time < sampling.MIN_SECONDS
    result = measured(machine, machine.work(1e-3), time_limit=1)
    assert result.median == pytest.approx(3e-3, rel=0.01)


@given(
    work=st.floats(min_value=3e-3, max_value=30.0),
    time_limit=st.floats(min_value=0.5, max_value=20.0),
    seed=st.integers(0, 10),
)
@settings(max_examples=60, deadline=None)
def test_the_time_limit_is_kept_to_one_sample(fake, work: float, time_limit: float, seed: int) -> None:
    factors = np.random.default_rng(seed).lognormal(0, 0.5, size=997)
    machine = fake.FakeMachine(factors, read_cost=1e-8, unit_seconds=work)
    result = measure(
        machine.work(work), time_limit=time_limit, precision=1e-9, clock=machine.clock, synchronize=fake.nothing
    )
    # The first call, the limit, and one call over it; work longer than the limit is called once for
    # the warm-up and once for the only sample.
    longest = work * factors.max()
    assert machine.time <= result.first_call_seconds + max(time_limit, longest) + 1.01 * longest + 1e-4
    assert result.seconds


def test_noise_floor_rule() -> None:
    def falling(power: float) -> list[tuple[int, float]]:
        return [(n, n**-power) for n in (30, 60, 120, 240)]

    assert reason_to_stop(False, falling(0.5)) is None  # independent samples: half as wide at four times as many
    assert reason_to_stop(False, falling(0.05)) is Stop.NOISE_FLOOR
    assert reason_to_stop(True, falling(0.5)) is Stop.PRECISION
    assert reason_to_stop(False, [(30, 0.1)]) is None  # nothing to hold it against
    assert reason_to_stop(False, [(30, 0.1), (60, 0.1), (119, 0.1)]) is None  # not yet four times as many
    assert reason_to_stop(False, [(30, 0.1), (60, 0.1), (120, 0.085)]) is None  # falls again since the half


# ---------------------------------------------------------------- what is measured


def test_the_first_call_is_apart(machine, measured) -> None:
    calls = itertools.count()
    result = measured(machine, lambda: machine.spend(2.0 if next(calls) == 0 else 0.001))
    assert result.first_call_seconds == pytest.approx(2.0)
    assert max(result.seconds + result.warm_up_seconds) < 0.0011


def test_the_first_call_does_not_count_against_the_time_limit(machine, measured) -> None:
    calls = itertools.count()
    result = measured(machine, lambda: machine.spend(100.0 if next(calls) == 0 else 0.001), time_limit=1)
    assert result.stopped is Stop.PRECISION


def test_warm_up_is_found_and_dropped(machine, measured) -> None:
    calls = itertools.count()
    # 100 ms of calls go by before sampling, which is 50 of these; 40 slow samples are left.
    result = measured(machine, lambda: machine.spend(0.002 if next(calls) < 90 else 0.001))
    assert len(result.warm_up_seconds) >= 38
    assert set(np.round(result.seconds, 6)) == {0.001}


def test_the_median_and_the_interval_are_those_of_the_samples(fake, measured, quiet_trace: str) -> None:
    machine = fake.FakeMachine.replaying(quiet_trace, 0.3)
    result = measured(machine, machine.work(1e-3))
    assert result.median == pytest.approx(1e-3, rel=0.1)
    assert result.interval.low <= result.median <= result.interval.high
    assert len(result.seconds) >= 30


def test_arguments_are_passed(machine, fake) -> None:
    seen = []

    def work(*args: object, **kwargs: object) -> None:
        seen.append((args, kwargs))
        machine.spend(0.01)

    measure(work, (1, "two"), {"three": 3}, clock=machine.clock, synchronize=fake.nothing)
    assert len(seen) > 30
    assert all(call == ((1, "two"), {"three": 3}) for call in seen)


@pytest.mark.parametrize("failing_call", [0, 1, 20, 100])
def test_errors_of_the_work_come_through(machine, measured, failing_call: int) -> None:
    calls = itertools.count()

    def work() -> None:
        machine.spend(0.01)
        if next(calls) == failing_call:
            raise ZeroDivisionError("the work failed")

    with pytest.raises(ZeroDivisionError, match="the work failed"):
        measured(machine, work, min_samples=200)
    assert next(calls) == failing_call + 1  # and it is not called again


def test_progress_is_reported_between_samples(fake, measured) -> None:
    machine = fake.FakeMachine(noise("large"))
    reports = []

    def slow_display(report: sampling.Progress) -> None:
        reports.append(report)
        machine.spend(0.5)

    result = measured(machine, machine.work(1e-3), on_progress=slow_display, time_limit=9)
    assert [r.samples for r in reports] == sorted({r.samples for r in reports})
    assert [r.seconds for r in reports] == sorted(r.seconds for r in reports)
    assert all(r.time_limit == 9 and r.half_width > 0 for r in reports)
    assert len(reports) > 3
    assert result.median < 0.002  # the display's half second is in no sample


def test_662_samples_permit_a_p99(fake, measured) -> None:
    machine = fake.FakeMachine(noise("small"))
    result = measured(machine, machine.work(1e-3), min_samples=662)
    assert len(result.seconds) >= 662
    assert result.percentile(99) == np.percentile(result.samples, 99)
    machine = fake.FakeMachine(noise("small"))
    few = measured(machine, machine.work(1e-3))
    assert len(few.seconds) < 662
    with pytest.raises(MeasurementError, match="p99 of 'work' needs at least 662 samples"):
        few.percentile(99)


def test_coarse_steps_of_the_clock_are_no_error(fake) -> None:
    machine = fake.FakeMachine(read_cost=1e-8)
    result = measure(
        machine.work(1e-5), clock=lambda: math.floor(machine.clock() / 1e-6) * 1e-6, synchronize=fake.nothing
    )
    assert result.median == pytest.approx(1e-5, rel=0.15)


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    "limit",
    [{"precision": 0}, {"time_limit": -1}, {"min_samples": 0}, {"precision": math.nan}, {"time_limit": math.nan}],
)
def test_limits_must_be_positive(limit: dict[str, float]) -> None:
    called = []
    with pytest.raises(ValueError, match=f"expected {next(iter(limit))} above 0"):
        measure(lambda: called.append(1), **limit)
    assert not called


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(TypeError, match=r"expected a callable to measure as 'work'\. Received: int"):
        measure(3)


@pytest.mark.parametrize("name", ["", "two\nlines", "x" * 201])
def test_a_bad_name_is_refused_before_the_work_runs(machine, measured, name: str) -> None:
    called = []

    def work() -> None:
        called.append(1)
        machine.spend(0.01)

    with pytest.raises(ValueError, match="name"):
        measured(machine, work, name=name)
    assert not called


# ---------------------------------------------------------------- work that times itself


class Elsewhere:
    """Work of another process: asking it costs a millisecond of this one's clock, which is none of its own."""

    def __init__(self, machine, seconds: float) -> None:
        self.machine, self.seconds, self.asked = machine, seconds, []

    def __call__(self) -> None:
        self.timed(1)

    def timed(self, calls: int) -> float:
        self.asked.append(calls)
        self.machine.spend(1e-3 + calls * self.seconds)
        return calls * self.seconds

    def memory(self) -> MemoryPeak:
        return MemoryPeak(resident=2**30, resident_before=2**20, device=None, of_whole_process=False)


def test_work_that_times_itself_is_asked_for_its_seconds(machine, measured) -> None:
    work = Elsewhere(machine, 1e-5)
    assert isinstance(work, TimesItself)
    result = measured(machine, work, name="elsewhere")
    assert result.median == pytest.approx(1e-5)  # the clock here says a hundred times that
    assert result.first_call_seconds == pytest.approx(1e-5)
    assert result.memory == work.memory()
    assert work.asked[0] == 1
    assert work.asked[-1] == result.calls_per_sample > 1


@pytest.mark.parametrize("seconds", [1e-6, 1e-5, 1e-3, 1.0])
def test_a_sample_of_work_elsewhere_lasts_five_times_the_asking(machine, measured, seconds: float) -> None:
    result = measured(machine, Elsewhere(machine, seconds), name="elsewhere")
    asking, sample = 1e-3, result.calls_per_sample * seconds
    assert sample >= sampling.ASKINGS * asking * (1 - 1e-9)
    assert sample <= max(seconds, 2 * sampling.ASKINGS * asking)


def test_a_function_is_not_asked(machine, measured) -> None:
    assert not isinstance(machine.work(1e-5), TimesItself)
    memory = measured(machine, machine.work(1e-5)).memory
    assert memory.resident_before > 2**20  # this process's, which is larger than what that work would have said


def test_work_that_took_no_time_is_an_error(machine, measured) -> None:
    with pytest.raises(MeasurementError, match="the clock stood still over"):
        measured(machine, Elsewhere(machine, 0.0))
