"""The watch over exchanges that wait in vain, on a clock of its own: Horovod may end while it asks the others."""

import math

import pytest

from tfperf.parallel.horovod import stalls
from tfperf.parallel.launch.environment import STALL_LIMIT_VARIABLE, STALL_WARNING_VARIABLE

WARNING, LIMIT, END = 2, 6, 20
"""Seconds of the clock after which the watch warns, ends the rank, and the test is over."""


class WatchEndedError(Exception):
    """Ends the watch, which ends with its process otherwise."""


class World:
    """Stands in for the clock, for Horovod on rank 0 of 2, and for an exchange in which this rank waits."""

    what = "an exchange of weights"

    def __init__(self, *, without_horovod=(), ended=math.inf):
        self.now, self.without_horovod, self.ended = 0.0, without_horovod, ended
        self.shutdowns = []

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        if self.now > END:
            raise WatchEndedError

    def _horovods(self, value):
        begin, end = self.without_horovod or (math.inf, math.inf)
        if begin <= self.now < end:
            raise ValueError("Horovod has not been initialized; use hvd.init().")
        return value

    def is_initialized(self):
        return True  # a moment ago

    def rank(self):
        return self._horovods(0)

    def size(self):
        return self._horovods(2)

    def waiting(self):
        return 1 if self.now < self.ended else None

    def shutdown(self):
        self.shutdowns.append(self.now)
        raise WatchEndedError


@pytest.fixture
def watch(monkeypatch):
    """A function that lets the watch run in a world until it shuts Horovod down, or the test is over."""
    monkeypatch.setenv(STALL_WARNING_VARIABLE, str(WARNING))
    monkeypatch.setenv(STALL_LIMIT_VARIABLE, str(LIMIT))
    monkeypatch.delenv("HOROVOD_GLOO_RENDEZVOUS_ADDR", raising=False)

    def watch(world, beside=()):
        monkeypatch.setattr(stalls, "time", world)
        monkeypatch.setattr(stalls, "hvd", world)
        monkeypatch.setattr(stalls, "_all_exchanges", [*beside, world])
        with pytest.raises(WatchEndedError):
            stalls._watch(world.shutdown)
        return world.shutdowns

    return watch


def test_the_longest_wait_is_the_one_that_ends_a_rank(watch):
    """Exchanges of another thread come and go meanwhile."""

    class Brief(World):
        def waiting(self):
            return int(world.now)

    world = World()
    assert watch(world, beside=[Brief()]) == [0.5 + LIMIT + stalls.ANSWER_SECONDS]


def test_a_rank_that_waits_in_vain_warns_and_ends(watch, capsys):
    assert watch(World()) == [0.5 + LIMIT + stalls.ANSWER_SECONDS]
    first, last = capsys.readouterr().err.splitlines()
    assert first.startswith("tfperf: rank 0 has waited 2 s in an exchange of weights for another rank; ending at 6 s")
    assert last.startswith(
        "tfperf: rank 0 has waited 6 s in an exchange of weights for another rank; so this rank ends"
    )


@pytest.mark.parametrize("without_horovod", [(3, 5), (2.4, 5)])
def test_the_watch_goes_on_after_horovod_has_ended(watch, without_horovod):
    """It ends as the watch waits for the answers of the others, or between two of its looks."""
    assert len(watch(World(without_horovod=without_horovod))) == 1


def test_an_exchange_that_ends_while_the_others_are_asked_shuts_nothing_down(watch):
    assert watch(World(ended=0.5 + LIMIT + 1)) == []
