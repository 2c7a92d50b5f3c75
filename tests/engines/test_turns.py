"""Who runs and who stands still, with work that remembers what became of it."""

import time

import pytest

from tfperf.engines.turns import InTurns, Turns
from tfperf.measure.memory import MemoryPeak
from tfperf.measure.sampling import TimesItself

PEAK = MemoryPeak(resident=2, resident_before=1, device=None, of_whole_process=False)


class Remembers:
    """Work that writes down what it is asked, in a list of all."""

    cores_used = 1.5

    def __init__(self, name, told):
        self.name, self.told = name, told

    def __call__(self):
        self.told.append((self.name, "called"))

    def timed(self, calls):
        self.told.append((self.name, calls))
        time.sleep(0.001)
        return 0.25

    def memory(self):
        self.told.append((self.name, "memory"))
        return PEAK


@pytest.fixture
def told():
    return []


@pytest.fixture
def works(told):
    turns = Turns()

    def made(name):
        return InTurns(
            Remembers(name, told),
            turns,
            lambda: told.append((name, "rests")),
            lambda: told.append((name, "wakes")),
            settling_seconds=0.01,
        )

    return made("a"), made("b")


def without_settling(told):
    return [one for one in told if one[1] == 7 or isinstance(one[1], str)]


def test_one_rests_when_another_is_asked_and_not_before(works, told):
    a, b = works
    assert a.timed(7) == 0.25
    assert a.timed(7) == 0.25
    a()
    assert b.memory() == PEAK
    assert b.timed(7) == 0.25
    assert a.timed(7) == 0.25
    turn_of_a = [("a", "wakes"), ("a", 7), ("a", 7), ("a", "called"), ("a", "rests")]
    turn_of_b = [("b", "wakes"), ("b", "memory"), ("b", 7), ("b", "rests")]
    assert without_settling(told) == [*turn_of_a, *turn_of_b, ("a", "wakes"), ("a", 7)]


def test_each_turn_begins_with_calls_that_nobody_times(works, told):
    a, b = works
    for work in (a, b, a):
        began = time.monotonic()
        work.timed(7)
        assert time.monotonic() - began >= 0.01
    calls = [calls for name, calls in told if name == "a" and isinstance(calls, int)]
    first = calls[: calls.index(7)]
    assert first == [2**one for one in range(len(first))]
    assert calls[len(first) + 1] == 1  # again


def test_it_is_work_that_times_itself(works):
    assert isinstance(works[0], TimesItself)
    assert works[0].cores_used == 1.5
