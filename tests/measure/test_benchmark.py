"""Benchmark: the block of the source's examples, and the way to `measure`."""

import pytest

from tfperf.measure import Benchmark
from tfperf.measure.measurement import Measurement


@pytest.fixture
def machine(fake):
    return fake.FakeMachine(read_cost=1e-7)


def test_block_prints_its_time_as_the_source_does(machine, fake, capsys: pytest.CaptureFixture) -> None:
    with Benchmark("eager", clock=machine.clock, synchronize=fake.nothing) as benchmark:
        assert benchmark.seconds is None
        machine.spend(1.27694)
    assert capsys.readouterr().out == "eager: 1.2769 sec\n"
    assert benchmark.seconds == pytest.approx(1.27694, rel=1e-6)


def test_block_waits_for_the_device(machine, fake) -> None:
    device = fake.FakeDevice(machine)
    device.work(7.0)()  # given to the device before the block: not the block's
    with Benchmark("block", clock=machine.clock, synchronize=device.synchronize) as benchmark:
        for _ in range(10):
            device.work(0.3)()
    assert benchmark.seconds == pytest.approx(3.0, rel=1e-4)


def test_block_asks_the_devices_that_there_are(machine, fake, monkeypatch: pytest.MonkeyPatch) -> None:
    device = fake.FakeDevice(machine)
    monkeypatch.setattr("tfperf.measure.benchmark.wait_for_devices", device.synchronize)
    with Benchmark("block", clock=machine.clock) as benchmark:
        device.work(0.5)()
    assert benchmark.seconds == pytest.approx(0.5, rel=1e-4)


def test_a_block_that_fails_has_no_time(machine, fake, capsys: pytest.CaptureFixture) -> None:
    benchmark = Benchmark("failing", clock=machine.clock, synchronize=fake.nothing)
    with benchmark:
        machine.spend(1.0)
    capsys.readouterr()
    with pytest.raises(KeyError), benchmark:
        raise KeyError("the work failed")
    assert benchmark.seconds is None  # not the time of the block before
    assert capsys.readouterr().out == ""


def test_a_benchmark_can_be_used_again(machine, fake) -> None:
    benchmark = Benchmark(clock=machine.clock, synchronize=fake.nothing)
    for seconds in (1.0, 2.0):
        with benchmark:
            machine.spend(seconds)
        assert benchmark.seconds == pytest.approx(seconds, rel=1e-6)


def test_its_description_is_done_unless_told(capsys: pytest.CaptureFixture) -> None:
    with Benchmark():
        pass
    assert capsys.readouterr().out.startswith("Done: 0.")


def test_measure_returns_a_measurement_of_that_name(machine, fake) -> None:
    seen = set()

    def work(x: int, *, y: int) -> None:
        seen.add((x, y))
        machine.spend(0.002)

    reports = []
    benchmark = Benchmark(
        "eager",
        clock=machine.clock,
        synchronize=fake.nothing,
        min_samples=700,
        precision=0.02,
        on_progress=reports.append,
    )
    result = benchmark.measure(work, 1, y=2)
    assert isinstance(result, Measurement)
    assert (result.name, result.precision) == ("eager", 0.02)
    assert result.median == pytest.approx(0.002, rel=1e-3)
    assert len(result.seconds) >= 700
    assert seen == {(1, 2)}
    assert reports


def test_measure_keeps_the_time_limit(machine, fake) -> None:
    benchmark = Benchmark("slow", clock=machine.clock, synchronize=fake.nothing, time_limit=3)
    result = benchmark.measure(machine.work(1.0))
    assert machine.time <= 1 + 3 + 1.01
    assert len(result.seconds) >= 2
