"""The wish that a launch ends before its ranks have: who looks at it, and waits that never miss it."""

import contextlib
import queue
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from tfperf.processes.patience import Patience

__all__ = ["ENDING_SIGNALS", "LOOK", "Ending", "LaunchEnded", "watched"]

T = TypeVar("T")

Returned = tuple[T | None, BaseException | None]
"""What a function has returned, and what it has raised."""

LOOK = 0.1
"""Seconds between two looks whether a launch is to end."""

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What ends a launch, with all that it has started."""


class LaunchEnded(Exception):  # noqa: N818  # no error: somebody wanted it
    """A launch is to end."""


class Ending:
    """Whether a launch is to end: a value that others look at, as a signal handler may do nothing else.

    A handler that raises does so anywhere, also while a lock is taken; one that sets an event waits for ever where the
    thread that it interrupts holds the event's lock. Python runs it in the main thread alone, and where another thread
    took the signal it does not wake the main one. So every wait of a launch is short, and looks here.

    Attributes:
        number: of the signal that asked for the end; None: nobody has.
    """

    number: int | None = None

    def ask(self, number: int = signal.SIGTERM, _: Any = None) -> None:
        """Ask for the end; a signal handler."""
        if self.number is None:
            self.number = number

    @property
    def asked(self) -> bool:
        """Whether somebody has."""
        return self.number is not None

    def look(self, _: Any = None) -> None:
        """Raise LaunchEnded if somebody has."""
        if self.asked:
            raise LaunchEnded

    @contextlib.contextmanager
    def on_signals(self, numbers: Sequence[signal.Signals] = ENDING_SIGNALS) -> Iterator[None]:
        """Have these signals ask for the end in the `with` block, but those that this process ignores; main thread."""
        before = {number: signal.getsignal(number) for number in numbers}
        wanted = [number for number in numbers if before[number] != signal.SIG_IGN]  # as a shell has it for background
        for number in wanted:
            signal.signal(number, self.ask)
        try:
            yield
        finally:
            for number in wanted:
                signal.signal(number, before[number])


def watched(function: Callable[[], T], ending: Ending, seconds: float = 0.0) -> T:
    """Call a function in a thread of its own, so that whatever it waits for, this thread goes on.

    Args:
        function: looks at `ending` itself, if it can.
        ending: of the launch.
        seconds: that the function has to return once the launch is to end; then it is left alone.

    Returns:
        What the function returns; what it raises is raised here.

    Raises:
        LaunchEnded: the launch is to end, and the function has not returned in time.
    """
    outcome: queue.SimpleQueue[Returned[T]] = queue.SimpleQueue()

    def call() -> None:
        try:
            outcome.put((function(), None))
        except BaseException as error:
            outcome.put((None, error))

    try:
        threading.Thread(target=call, daemon=True).start()
        value, error, interruption = _awaited(outcome, ending, seconds)
    except BaseException:  # Ctrl-C comes between any two lines, and what was started must end all the same
        ending.ask(signal.SIGINT)
        raise
    if interruption or error:
        raise interruption or error  # type: ignore[misc]  # mypy: perhaps None
    return value  # type: ignore[return-value]  # the function's


def _awaited(
    outcome: "queue.SimpleQueue[Returned[T]]", ending: Ending, seconds: float
) -> tuple[T | None, BaseException | None, KeyboardInterrupt | None]:
    """What a function has returned and raised, and the Ctrl-C that came meanwhile, where nobody handles it."""
    patience: Patience | None = None
    interruption: KeyboardInterrupt | None = None
    while True:
        try:
            while patience is None or patience.left():
                with contextlib.suppress(queue.Empty):
                    return (*outcome.get(timeout=LOOK), interruption)
                if ending.asked:
                    patience = patience or Patience(seconds)
        except KeyboardInterrupt as ctrl_c:  # wherever in the loop it comes
            ending.ask(signal.SIGINT)
            interruption = ctrl_c
        else:
            raise interruption or LaunchEnded
