"""Which plan takes which lane, with looks that end when the test says so."""

import threading

import pytest

from tfperf.engines.plan import Plan
from tfperf.search.lanes import STARTERS, Lanes

CONVERTED = [Plan(engine="litert", threads=one) for one in (1, 2, 3)]
CALLED = [Plan(engine=name) for name in ("predict", "eager", "graph")]


class Looks:
    """Remembers what was begun, and holds each until it is let go."""

    def __init__(self):
        self.begun, self.left, self.together, self.free = [], [], [], threading.Event()
        self.lock, self.running = threading.Lock(), []

    def __call__(self, plan, left):
        with self.lock:
            self.begun.append(plan)
            self.left.append(left)
            self.running.append(plan)
            self.together.append(tuple(self.running))
            if len(self.running) == STARTERS:
                self.free.set()
        self.free.wait(10)
        with self.lock:
            self.running.remove(plan)


def never():
    return False


def test_a_conversion_and_a_start_run_side_by_side_and_what_was_put_off_fills_the_lane():
    looks = Looks()
    with Lanes(looks, lambda: None) as lanes:
        lanes.later(CALLED)
        lanes.run(CONVERTED, never)
        assert set(CONVERTED) <= set(looks.begun)
        assert looks.together[1] == (CONVERTED[0], CALLED[0])
        lanes.finish()
    assert sorted(map(str, looks.begun)) == sorted(map(str, [*CONVERTED, *CALLED]))
    assert looks.left == [5, 4, 3, 2, 1, 0]
    assert max(map(len, looks.together)) == STARTERS


def test_a_stop_leaves_what_was_not_begun_but_not_what_was_put_off():
    looks = Looks()
    looks.free.set()
    with Lanes(looks, lambda: None) as lanes:
        lanes.later(CALLED)
        lanes.run(CONVERTED, lambda: True)
        lanes.finish()
    assert sorted(map(str, looks.begun)) == sorted(map(str, CALLED))


def test_what_follows_is_asked_for_whenever_a_lane_is_free_until_nothing_does():
    looks, beside = Looks(), []
    waiting = {(): CONVERTED[:1], (CONVERTED[0],): CALLED[:1]}

    def more(running):
        beside.append(tuple(running))
        return waiting.pop(tuple(running), [])

    with Lanes(looks, lambda: None) as lanes:
        lanes.follow(more, never)
    assert looks.begun == [CONVERTED[0], CALLED[0]]
    assert looks.together[1] == (CONVERTED[0], CALLED[0])
    assert beside[:2] == [(), (CONVERTED[0],)]
    assert beside[-1] == ()


def test_what_follows_goes_before_what_was_put_off():
    looks = Looks()
    looks.free.set()
    waiting = [CONVERTED, []]
    with Lanes(looks, lambda: None) as lanes:
        lanes.later(CALLED)
        lanes.follow(lambda running: waiting.pop(0) if waiting and not running else [], never)
        lanes.finish()
    assert looks.begun[0] == CONVERTED[0]
    assert sorted(map(str, looks.begun)) == sorted(map(str, [*CONVERTED, *CALLED]))


def test_a_stop_asks_for_nothing_more():
    looks = Looks()
    with Lanes(looks, lambda: None) as lanes:
        lanes.follow(lambda _: CONVERTED, lambda: True)
    assert not looks.begun


def test_what_a_look_raises_comes_out_and_the_others_are_given_up():
    given_up = threading.Event()

    def look(plan, _left):
        if plan == CONVERTED[0]:
            raise RuntimeError("as it is")
        given_up.wait(10)

    with Lanes(look, given_up.set) as lanes:
        lanes.later(CALLED)
        with pytest.raises(RuntimeError, match="as it is"):
            lanes.run(CONVERTED, never)
    assert given_up.is_set()
