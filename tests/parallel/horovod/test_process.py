"""A rank leaves the others in one thread at a time, and at exit before Horovod's own turn."""

import atexit
import threading
from concurrent.futures import ThreadPoolExecutor

import horovod.tensorflow as horovod
import pytest

from tfperf.parallel.horovod import process


def test_two_threads_never_leave_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """If two threads join Horovod's at once, one of them can wait forever."""
    inside = threading.Semaphore(1)
    met = []

    def shutdown() -> None:
        met.append(inside.acquire(blocking=False))
        threading.Event().wait(0.05)
        inside.release()

    monkeypatch.setattr(horovod, "shutdown", shutdown)
    with ThreadPoolExecutor(4) as threads:
        for thread in [threads.submit(process.shutdown) for _ in range(4)]:
            thread.result()
    assert met == [True] * 4


def test_at_exit_it_comes_first_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    registered: list[object] = []
    monkeypatch.setattr(atexit, "register", registered.append)
    monkeypatch.setattr(atexit, "unregister", lambda f: f in registered and registered.remove(f))
    for horovods_own in ("first init", "second init"):
        registered.append(horovods_own)
        process.shutdown_at_exit()
        assert registered[-1] is process.shutdown  # atexit calls the last one first
        assert registered.count(process.shutdown) == 1
