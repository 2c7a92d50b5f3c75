"""Who runs and who stands still, with work that remembers what became of it."""

import pytest

from tfperf.measure.memory import MemoryPeak
from tfperf.measure.sampling import TimesItself
from tfperf.trials.turns import InTurns, Turns

SETTLING = [1, 2, 4, 3]
"""Calls of a millisecond, more and more, that are done in about 10."""

PEAK = MemoryPeak(resident=2, resident_before=1, device=None, of_whole_process=False)


class Remembers:
    """Work that writes down what it is asked, in a list of all."""

    cores_used = 1.5

    def __init__(self, name, told, clock):
        self.name, self.told, self.clock = name, told, clock

    def __call__(self):
        self.told.append((self.name, "called"))

    def timed(self, calls):
        self.told.append((self.name, calls))
        self.clock.milliseconds += calls
        return calls / 1000

    def memory(self):
        self.told.append((self.name, "memory"))
        return PEAK


class Clock:
    """Stands still unless something is timed."""

    milliseconds = 0

    def monotonic(self):
        return self.milliseconds / 1000


@pytest.fixture
def told():
    return []


@pytest.fixture
def works(told, monkeypatch):
    turns, clock = Turns(), Clock()
    monkeypatch.setattr("tfperf.trials.turns.time", clock)

    def made(name):
        return InTurns(
            Remembers(name, told, clock),
            turns,
            lambda: told.append((name, "rests")),
            lambda: told.append((name, "wakes")),
            settling_seconds=0.0095,
        )

    return made("a"), made("b")


def without_settling(told):
    return [one for one in told if one[1] == 7 or isinstance(one[1], str)]


def test_one_rests_when_another_is_asked_and_not_before(works, told):
    a, b = works
    assert a.timed(7) == 0.007
    assert a.timed(7) == 0.007
    a()
    assert b.memory() == PEAK
    assert b.timed(7) == 0.007
    assert a.timed(7) == 0.007
    turn_of_a = [("a", "wakes"), ("a", 7), ("a", 7), ("a", "called"), ("a", "rests")]
    turn_of_b = [("b", "wakes"), ("b", "memory"), ("b", 7), ("b", "rests")]
    assert without_settling(told) == [*turn_of_a, *turn_of_b, ("a", "wakes"), ("a", 7)]


def test_a_call_that_settling_has_done_is_not_done_again(works, told):
    a, b = works
    for work in (a, a, b):
        work()
    assert [one for one in told if one[1] == "called"] == [("a", "called")]


def test_each_turn_begins_with_calls_that_nobody_times(works, told):
    a, b = works
    for work in (a, a, b, a):
        work.timed(7)
    for name, calls in {"a": [*SETTLING, 7, 7, *SETTLING, 7], "b": [*SETTLING, 7]}.items():
        assert [times for who, times in told if who == name and isinstance(times, int)] == calls


def test_it_is_work_that_times_itself(works):
    assert isinstance(works[0], TimesItself)
    assert works[0].cores_used == 1.5
