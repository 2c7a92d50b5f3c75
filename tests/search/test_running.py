"""Which plan is looked at when, with looks that end when the test says so; which processes wait, with none started."""

import threading
from types import SimpleNamespace

import pytest

from tfperf.engines.plan import Plan
from tfperf.search.running import PlanQueue, WaitingProcesses
from tfperf.search.strategy import STARTERS

CONVERTED = [Plan(engine="litert", threads=one) for one in (1, 2, 3)]
CALLED = [Plan(engine=name) for name in ("predict", "eager", "graph")]


class Looks:
    """Remembers what was begun, and holds each until it is let go."""

    def __init__(self):
        self.begun, self.left, self.together, self.free = [], {}, [], threading.Event()
        self.lock, self.running = threading.Lock(), []

    def __call__(self, plan, left):
        with self.lock:
            self.begun.append(plan)
            self.left[plan] = left
            self.running.append(plan)
            self.together.append(set(self.running))
            if len(self.running) == STARTERS.number:
                self.free.set()
        self.free.wait(60)
        with self.lock:
            self.running.remove(plan)


def never():
    return False


def test_a_conversion_and_a_start_run_side_by_side_and_what_was_put_off_fills_what_is_free():
    looks = Looks()
    with PlanQueue(looks, lambda: None) as queue:
        queue.later(CALLED)
        assert queue.run(CONVERTED, never) == []
        assert set(CONVERTED) <= set(looks.begun)
        assert looks.together[1] == {CONVERTED[0], CALLED[0]}
        queue.finish()
    assert sorted(map(str, looks.begun)) == sorted(map(str, [*CONVERTED, *CALLED]))
    assert sorted(looks.left.values(), reverse=True) == [5, 4, 3, 2, 1, 0]
    assert (looks.left[CONVERTED[0]], looks.left[CALLED[0]]) == (5, 4)
    assert max(map(len, looks.together)) == STARTERS.number


def test_a_stop_leaves_what_was_not_begun_but_not_what_was_put_off():
    looks = Looks()
    looks.free.set()
    with PlanQueue(looks, lambda: None) as queue:
        queue.later(CALLED)
        assert queue.run(CONVERTED, lambda: True) == CONVERTED
        queue.finish()
    assert sorted(map(str, looks.begun)) == sorted(map(str, CALLED))


def test_what_follows_is_asked_for_whenever_a_thread_is_free_until_nothing_does():
    looks, beside = Looks(), []
    waiting = {(): CONVERTED[:1], (CONVERTED[0],): CALLED[:1]}

    def more(running):
        beside.append(tuple(running))
        return waiting.pop(tuple(running), [])

    with PlanQueue(looks, lambda: None) as queue:
        queue.follow(more, never)
    assert looks.together[1] == {CONVERTED[0], CALLED[0]}
    assert len(looks.begun) == 2
    assert beside[:2] == [(), (CONVERTED[0],)]
    assert beside[-1] == ()


def test_what_follows_goes_before_what_was_put_off():
    looks = Looks()
    looks.free.set()
    waiting = [CONVERTED, []]
    with PlanQueue(looks, lambda: None) as queue:
        queue.later(CALLED)
        queue.follow(lambda running: waiting.pop(0) if waiting and not running else [], never)
        queue.finish()
    assert max(looks.left, key=looks.left.get) == CONVERTED[0]  # the first to be handed to a thread
    assert sorted(map(str, looks.begun)) == sorted(map(str, [*CONVERTED, *CALLED]))


def test_a_stop_begins_nothing_more():
    looks = Looks()
    with PlanQueue(looks, lambda: None) as queue:
        assert queue.follow(lambda _: CONVERTED, lambda: True) == CONVERTED
    assert not looks.begun


def test_a_stop_is_asked_for_only_where_something_is_left():
    """Who asks whether the time is up while nothing is left would say that it did not suffice."""
    looks, waiting, asked = Looks(), [CONVERTED[:1]], []
    looks.free.set()

    def stop():
        asked.append(len(looks.begun))
        return False

    with PlanQueue(looks, lambda: None) as queue:
        queue.later(CALLED)
        assert queue.run(CONVERTED[1:2], stop) == []
        assert set(asked) == {0}
        queue.finish()
        before = len(asked)
        assert queue.follow(lambda _: waiting.pop() if waiting else [], stop) == []
        assert set(asked[before:]) == {len(CALLED) + 1}
        before = len(asked)
        assert queue.follow(lambda _: [], stop) == []
    assert len(asked) == before


def test_a_stop_tells_what_waited_and_what_there_was_more_of():
    looks, waiting = Looks(), [CALLED, CONVERTED]
    looks.free.set()
    with PlanQueue(looks, lambda: None) as queue:
        left = queue.follow(lambda _: waiting.pop() if waiting else [], lambda: bool(looks.begun))
    assert set(looks.begun) == {*CONVERTED[: STARTERS.number]}
    assert left == [*CONVERTED[STARTERS.number :], *CALLED]


def test_what_a_look_raises_comes_out_and_the_others_are_given_up():
    given_up = threading.Event()

    def look(plan, _left):
        if plan == CONVERTED[0]:
            raise RuntimeError("as it is")
        given_up.wait(60)

    with PlanQueue(look, given_up.set) as queue:
        queue.later(CALLED)
        with pytest.raises(RuntimeError, match="as it is"):
            queue.run(CONVERTED, never)
    assert given_up.is_set()


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
def waiting(launcher):
    return WaitingProcesses(launcher, room=100)


def test_what_is_kept_is_taken_again_once(waiting, launcher):
    started = waiting.take(PLANS[0])
    waiting.keep(PLANS[0], started, trials(10, 10, 10))
    assert waiting.take(PLANS[0]) is started
    assert waiting.take(PLANS[0]) is not started
    assert len(launcher.running) == 2


def test_what_has_died_is_started_afresh(waiting, launcher):
    started = waiting.take(PLANS[0])
    waiting.keep(PLANS[0], started, trials(10, 10, 10))
    started[0].alive = False
    assert waiting.take(PLANS[0]) is not started


def test_what_is_not_wanted_ends(waiting, launcher):
    first, second = map(waiting.take, PLANS[:2])
    waiting.keep(PLANS[0], first, trials(10, 10, 10))
    waiting.keep(PLANS[1], second, trials(10, 10, 10)[1:])
    assert launcher.running == [second[0]]
    assert waiting.take(PLANS[1]) is second


@pytest.mark.parametrize(("memory", "stay"), [((60, 60, 30), (0, 2)), ((100, 1, 1), (0,)), ((101, 99, 1), (1, 2))])
def test_the_most_wanted_stay_as_far_as_there_is_room(waiting, launcher, memory, stay):
    processes = [waiting.take(plan) for plan in PLANS]
    for plan, started in zip(PLANS, processes, strict=True):
        waiting.keep(plan, started, [])
    assert launcher.running == []  # nothing was wanted
    processes = [waiting.take(plan) for plan in PLANS]
    for place, (plan, started) in enumerate(zip(PLANS, processes, strict=True)):
        waiting.keep(plan, started, trials(*memory)[: place + 1])
    assert launcher.running == [processes[place][0] for place in stay]


def test_all_but_some_end(waiting, launcher):
    processes = [waiting.take(plan) for plan in PLANS]
    for plan, started in zip(PLANS, processes, strict=True):
        waiting.keep(plan, started, trials(1, 1, 1))
    waiting.end_others({PLANS[1]})
    assert launcher.running == [processes[1][0]]
    waiting.end_others(())
    assert launcher.running == []
