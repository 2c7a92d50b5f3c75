"""Passes in turns: what they take as the figure, and when they say that the machine is too noisy."""

import itertools

import pytest

from tfperf.hardware.repeating import Repeats, TimedTask, best_decile, doubts_about, in_turns, on_change


class Machine:
    """A clock that only work moves, and work whose seconds in each pass are given."""

    def __init__(self):
        self.now = 0.0
        self.prepared = []

    def clock(self):
        return self.now

    def work(self, name, *passes):
        seconds = itertools.chain(passes, itertools.repeat(passes[-1]))

        def prepare():
            self.prepared.append(name)
            each = next(seconds)

            def sample():
                self.now += each
                return each

            return sample

        return TimedTask(name, prepare)


def test_the_best_decile_is_neither_the_lucky_sample_nor_the_usual_one():
    assert best_decile([5.0, 1.0, 4.0]) == 1.0
    assert best_decile(range(100, 0, -1)) == 11
    assert best_decile([0.5, *[1.0] * 18, 9.0]) == 1.0


def test_two_passes_in_turns_where_they_agree():
    machine = Machine()
    found = in_turns([machine.work("a", 1.0, 1.04), machine.work("b", 2.0)], 3.0, clock=machine.clock)
    assert machine.prepared == ["a", "b", "a", "b"]
    assert found == [Repeats("a", (1.0, 1.04)), Repeats("b", (2.0, 2.0))]
    assert found[0].seconds == 1.0
    assert doubts_about(found) == ()


def test_what_disagrees_is_measured_again_and_two_of_the_passes_are_enough():
    machine = Machine()
    tasks = [machine.work("a", 1.5, 1.0, 1.02), machine.work("b", 1.0)]
    found = in_turns(tasks, 1.0, clock=machine.clock)
    assert machine.prepared == ["a", "b", "a", "b", "a"]
    assert found[0].passes == (1.5, 1.0, 1.02)
    assert found[0].seconds == 1.0
    assert doubts_about(found) == ()


def test_what_never_agrees_is_a_doubt_that_names_the_worst():
    machine = Machine()
    tasks = [machine.work("a", 1.0, 1.2, 1.4, 1.6), machine.work("b", 1.0, 2.0, 3.0, 4.0), machine.work("c", 1.0)]
    found = in_turns(tasks, 1.0, clock=machine.clock)
    assert [len(one.passes) for one in found] == [6, 6, 2]
    (doubt,) = doubts_about(found)
    assert "2 of 3 figures" in doubt.words
    assert "least for b (100%)" in doubt.words


def test_when_the_time_is_up_no_third_pass_begins():
    machine = Machine()
    found = in_turns([machine.work("a", 1.0, 2.0, 3.0)], 1.0, time_limit=5.0, clock=machine.clock)
    assert found[0].passes == (1.0, 2.0)


def test_where_time_is_short_the_first_is_taken_again_and_the_last_is_not():
    machine = Machine()
    tasks = [machine.work("a", 1.0, 2.0, 3.0, 4.0), machine.work("b", 1.0, 2.0, 3.0, 4.0)]
    found = in_turns(tasks, 1.0, time_limit=31.0, clock=machine.clock)  # two passes over both take 30 s
    assert [len(one.passes) for one in found] == [3, 2]


def test_long_samples_are_few_and_short_ones_many():
    machine = Machine()
    in_turns([machine.work("a", 1.0)], 0.001, clock=machine.clock)
    assert machine.now == 10.0  # five in each of two passes
    machine = Machine()
    in_turns([machine.work("a", 0.125)], 2.0, clock=machine.clock)
    assert machine.now == 4.0


@pytest.mark.parametrize(("names", "told"), [("aab", ["A", "B"]), ("abab", ["A", "B", "A", "B"]), ("", [])])
def test_kinds_are_told_when_they_change(names, told):
    heard = []
    tell = on_change(heard.append, str.upper)
    for name in names:
        tell(name)
    assert heard == told
