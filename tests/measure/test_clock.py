"""What reading the clock costs."""

import itertools

import pytest

from tfperf.measure.clock import read_cost, wall_clock


def test_it_is_the_cost_of_one_reading(fake) -> None:
    machine = fake.FakeMachine(read_cost=3e-7)
    assert read_cost(machine.clock, fake.nothing) == pytest.approx(3e-7)


def test_it_includes_one_wait(fake) -> None:
    machine = fake.FakeMachine(read_cost=3e-7)
    # Of the two waits around a sample only the second lies between the readings.
    assert read_cost(machine.clock, machine.work(1e-5)) == pytest.approx(1.03e-5)


def test_an_interruption_is_no_cost(fake) -> None:
    machine, waits = fake.FakeMachine(read_cost=1e-7), itertools.count()

    def interrupted_now_and_then() -> None:
        machine.spend(0.01 if next(waits) % 5 == 0 else 0.0)

    assert read_cost(machine.clock, interrupted_now_and_then) == pytest.approx(1e-7)


def test_the_wall_clock_never_goes_backwards() -> None:
    readings = [wall_clock() for _ in range(1000)]
    assert readings == sorted(readings)
    assert readings[-1] > readings[0]
