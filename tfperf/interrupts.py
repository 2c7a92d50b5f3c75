"""Ctrl-C, also for what a shell started in the background."""

import signal
import threading

__all__ = ["restore_interrupts"]


def restore_interrupts() -> None:
    """Have SIGINT raise KeyboardInterrupt again where this process was started with SIGINT ignored.

    A shell without job control ignores it for what it starts with `&`, and every child inherits that: nothing that is
    then started could be interrupted.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)
