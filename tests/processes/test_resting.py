"""Whether a process that others wait for works, does nothing, or is stopped."""

import signal
import subprocess
import sys
import time

import psutil
import pytest

from tfperf.processes import resting
from tfperf.processes.resting import Rest

COMPUTES = "while True: pass"
SLEEPS = "import time; time.sleep(600)"
HAS_A_CHILD_THAT_COMPUTES = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {COMPUTES!r}])"


@pytest.fixture
def started():
    """A function that starts Python code; all ends with the test."""
    processes = []

    def start(code):
        processes.append(subprocess.Popen([sys.executable, "-c", code]))
        return processes[-1]

    yield start
    for process in processes:
        if process.poll() is None:
            for one in (*psutil.Process(process.pid).children(recursive=True), process):
                one.kill()
        process.wait()


def watched(rest, seconds=2.0):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.2)
        rest.look()
    return rest


def test_one_that_sleeps_does_nothing(started):
    process = started(SLEEPS)
    time.sleep(1.0)  # Python has started
    rest = watched(Rest(process.pid))
    assert rest.idle > 1.0
    assert rest.stopped == 0


def test_one_that_computes_does_something(started):
    rest = watched(Rest(started(COMPUTES).pid))
    assert rest.idle < 1.0


def test_what_a_descendant_does_counts_where_it_is_asked_for(started):
    process = started(HAS_A_CHILD_THAT_COMPUTES)
    while not psutil.Process(process.pid).children():
        time.sleep(0.05)
    time.sleep(1.0)
    both, alone = Rest(process.pid, with_descendants=True), Rest(process.pid)
    watched(alone)
    watched(both, 1.0)
    assert alone.idle > 1.0
    assert both.idle < 1.0


def test_one_that_is_stopped_and_goes_on(started):
    process = started(COMPUTES)
    process.send_signal(signal.SIGSTOP)
    rest = watched(Rest(process.pid), 1.5)
    assert rest.stopped > 0.8
    process.send_signal(signal.SIGCONT)
    assert watched(rest, 1.0).stopped == 0


def test_time_in_which_nobody_looked_does_not_count(started, monkeypatch):
    process = started(SLEEPS)
    rest = Rest(process.pid)
    seconds = iter([1e6, 2e6])
    monkeypatch.setattr(resting.time, "monotonic", lambda: next(seconds))
    rest.look()
    rest.look()
    assert rest.idle <= 4 * resting.LOOK


def test_one_that_has_ended_is_refused(started):
    process = started("")
    process.wait()
    with pytest.raises(psutil.NoSuchProcess):
        Rest(process.pid)
