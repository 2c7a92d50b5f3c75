"""Signals that a process handles in its own way for a while."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

__all__ = ["handling"]


@contextlib.contextmanager
def handling(number: signal.Signals, handler: Any) -> Iterator[None]:
    """Handle a signal with `handler` in the `with` block; in another thread than the main one nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)
