"""Ranks that do not come while others wait: who is named, and who is left alone."""

import subprocess
import sys
import time

import pytest

from tfperf.parallel.launch.static import watched_arrivals

NAMES = {0: "rank 0", 1: "rank 1", 2: "rank 2"}


@pytest.fixture
def process_of():
    """Rank 1 sleeps, rank 2 computes, rank 0 is elsewhere."""
    codes = {"rank 1": "import time; time.sleep(600)", "rank 2": "while True: pass"}
    processes = {name: subprocess.Popen([sys.executable, "-c", code]) for name, code in codes.items()}
    yield lambda name: processes[name].pid if name in processes else None
    for process in processes.values():
        process.kill()
        process.wait()


def found_within(seconds, came, process_of, idle_limit=1.0):
    ended = []
    with watched_arrivals(came, NAMES, process_of, lambda: ended.append(True), idle_limit) as found:
        until = time.monotonic() + seconds
        while not ended and time.monotonic() < until:
            time.sleep(0.05)
    assert len(ended) == len(found)
    return found


def test_who_does_nothing_is_named(process_of):
    words = "rank 1 has not come to hvd.init(), and has done nothing for 1 s; rank 0 waited for it"
    assert found_within(60, {0}, process_of) == [words]


def test_while_nobody_waits_nobody_is_missed(process_of):
    assert found_within(3, set(), process_of) == []


def test_who_computes_is_waited_for(process_of):
    assert found_within(4, {0, 1}, process_of) == []


def test_who_is_elsewhere_is_not_looked_at(process_of):
    assert found_within(3, {1, 2}, process_of) == []


def test_a_limit_can_be_lifted(process_of):
    assert found_within(3, {0}, process_of, float("inf")) == []
