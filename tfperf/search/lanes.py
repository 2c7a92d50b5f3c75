"""Looks at plans, a few at a time: while one is converted, another starts."""

from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Self

from tfperf.engines.catalog import find_engine
from tfperf.engines.plan import Plan

__all__ = ["STARTERS", "Lanes"]

STARTERS = 2
"""Plans that are being started at a time: most of a start is one thread that imports and loads."""


class Lanes:
    """A few threads that look at plans; a context manager, at whose end they end."""

    def __init__(self, look: Callable[[Plan, int], None], give_up: Callable[[], None]) -> None:
        """Start nothing yet.

        Args:
            look: looks at a plan; is told how many are left.
            give_up: ends what `look` waits for, when something else has gone wrong.
        """
        self._look, self._give_up = look, give_up
        self._pool = ThreadPoolExecutor(STARTERS)
        self._running: dict[Future[None], Plan] = {}
        self._later: list[Plan] = []

    def later(self, plans: Iterable[Plan]) -> None:
        """Look at these when there is a lane for which `run` has nothing better, or in `finish`."""
        self._later += plans

    def run(self, plans: Iterable[Plan], stop: Callable[[], bool]) -> None:
        """Look at all of these.

        Args:
            stop: whether those that were not begun are to be left alone.
        """
        waiting = list(plans)
        wanted = set(waiting)
        self._run(waiting, lambda: bool(waiting or wanted & set(self._running.values())), stop)

    def follow(self, more: Callable[[Collection[Plan]], Iterable[Plan]], stop: Callable[[], bool]) -> None:
        """Look at whatever there is more of, until there is nothing more and nothing runs.

        Args:
            more: is asked whenever a lane is free: what to look at beside those that are being looked at now.
            stop: whether nothing more is to be begun.
        """
        waiting: list[Plan] = []

        def unfinished() -> bool:
            if not waiting and len(self._running) < STARTERS and not stop():
                waiting.extend(more(self._running.values()))
            return bool(waiting or self._running)

        self._run(waiting, unfinished, stop)

    def finish(self) -> None:
        """Look at all that was put off, and wait for all that runs."""
        self._run([], lambda: bool(self._running or self._later), lambda: False)

    def _run(self, waiting: list[Plan], unfinished: Callable[[], bool], stop: Callable[[], bool]) -> None:
        try:
            while unfinished():
                if stop():
                    waiting.clear()
                while len(self._running) < STARTERS and unfinished() and (waiting or self._later):
                    plan = self._next(waiting)
                    (waiting if plan in waiting else self._later).remove(plan)
                    left = len(waiting) + len(self._later)
                    self._running[self._pool.submit(self._look, plan, left)] = plan
                for future in wait(self._running, return_when=FIRST_COMPLETED).done:
                    del self._running[future]
                    future.result()
        except BaseException:
            self._give_up()
            raise

    def __enter__(self) -> Self:
        """End the threads at the end of the `with` block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for what runs."""
        self._pool.shutdown()

    def _next(self, waiting: Sequence[Plan]) -> Plan:
        """The first that does not wait for what is being started: only one plan can be converted at a time."""
        converting = any(map(_is_converted, self._running.values()))
        candidates = [*waiting, *self._later]
        return next((plan for plan in candidates if _is_converted(plan) != converting), candidates[0])


def _is_converted(plan: Plan) -> bool:
    return find_engine(plan.engine).format is not None
