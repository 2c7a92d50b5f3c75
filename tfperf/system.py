"""What the system gives this process: its cores, and Ctrl-C also where a shell started it in the background."""

import os
import signal
import threading
from pathlib import Path

__all__ = ["forget_interruption", "restore_interrupts", "thread_words", "usable_cores"]

CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def usable_cores() -> int:
    """Cores this process may use: those of its affinity mask, cut by its control group's quota; at least 1."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = CPU_QUOTA.read_text(encoding="utf-8").split()  # "<microseconds or max> <period>"
        return cores if quota == "max" else max(1, min(cores, -(-int(quota) // int(period))))
    except (OSError, ValueError):
        return cores


def thread_words(threads: int | None) -> str:
    """ "1 thread", "2 threads"; None: what each engine takes by itself."""
    return "threads by default" if threads is None else f"{threads} thread{'s' * (threads > 1)}"


def restore_interrupts() -> None:
    """Have SIGINT raise KeyboardInterrupt again where this process was started with SIGINT ignored.

    A shell without job control ignores it for what it starts with `&`, and every child inherits that: nothing that is
    then started could be interrupted.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)


def forget_interruption() -> None:
    """Have this process end with the exit code it chooses, after a KeyboardInterrupt that was caught.

    What runs as `python -m` ends by SIGINT instead where one has passed through `exec` of a text, as which every
    dataclass is made, until the next `exec` of a text.
    """
    exec("")  # noqa: S102
