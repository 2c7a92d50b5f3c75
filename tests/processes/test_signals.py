"""A signal is handled otherwise for a while, and as before afterwards."""

import os
import signal
import threading

import pytest

from tfperf.processes.signals import handling


def test_it_is_handled_so_in_the_block_and_as_before_after_it():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), handling(signal.SIGTERM, signal.default_int_handler):
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def test_in_another_thread_nothing_changes():
    before, inside = signal.getsignal(signal.SIGTERM), []

    def look():
        with handling(signal.SIGTERM, signal.default_int_handler):
            inside.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert inside == [before]
