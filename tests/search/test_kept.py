"""Which processes wait, with a launcher that only counts."""

from types import SimpleNamespace

import pytest

from tfperf.engines.plan import Plan
from tfperf.search.kept import Kept

PLANS = [Plan(engine="litert", threads=threads) for threads in (1, 2, 3)]


class Process:
    alive = True


class Counts:
    """Starts nothing, and remembers what would run."""

    def __init__(self):
        self.running = []

    def start(self, plan):
        process = Process()
        self.running.append(process)
        return process, f"loaded {plan}"

    def end(self, process):
        self.running.remove(process)


def trials(*memory):
    return [SimpleNamespace(plan=plan, memory=size) for plan, size in zip(PLANS, memory, strict=True)]


@pytest.fixture
def launcher():
    return Counts()


@pytest.fixture
def kept(launcher):
    return Kept(launcher, room=100)


def test_what_is_kept_is_taken_again_once(kept, launcher):
    started = kept.take(PLANS[0])
    kept.keep(PLANS[0], started, trials(10, 10, 10))
    assert kept.take(PLANS[0]) is started
    assert kept.take(PLANS[0]) is not started
    assert len(launcher.running) == 2


def test_what_has_died_is_started_afresh(kept, launcher):
    started = kept.take(PLANS[0])
    kept.keep(PLANS[0], started, trials(10, 10, 10))
    started[0].alive = False
    assert kept.take(PLANS[0]) is not started


def test_what_is_not_wanted_ends(kept, launcher):
    first, second = map(kept.take, PLANS[:2])
    kept.keep(PLANS[0], first, trials(10, 10, 10))
    kept.keep(PLANS[1], second, trials(10, 10, 10)[1:])
    assert launcher.running == [second[0]]
    assert kept.take(PLANS[1]) is second


@pytest.mark.parametrize(("memory", "stay"), [((60, 60, 30), (0, 2)), ((100, 1, 1), (0,)), ((101, 99, 1), (1, 2))])
def test_the_most_wanted_stay_as_far_as_there_is_room(kept, launcher, memory, stay):
    processes = [kept.take(plan) for plan in PLANS]
    for plan, started in zip(PLANS, processes, strict=True):
        kept.keep(plan, started, [])
    assert launcher.running == []  # nothing was wanted
    processes = [kept.take(plan) for plan in PLANS]
    for place, (plan, started) in enumerate(zip(PLANS, processes, strict=True)):
        kept.keep(plan, started, trials(*memory)[: place + 1])
    assert launcher.running == [processes[place][0] for place in stay]


def test_all_but_some_end(kept, launcher):
    processes = [kept.take(plan) for plan in PLANS]
    for plan, started in zip(PLANS, processes, strict=True):
        kept.keep(plan, started, trials(1, 1, 1))
    kept.end_others({PLANS[1]})
    assert launcher.running == [processes[1][0]]
    kept.end_others(())
    assert launcher.running == []
