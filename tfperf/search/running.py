"""Plans in processes: looked at a few at a time, and kept for their next round, as a start takes long."""

from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from threading import Lock
from typing import Self

from tfperf.engines.catalog import find_engine
from tfperf.engines.plan import Plan
from tfperf.search.strategy import STARTERS
from tfperf.trials.launching import Launcher
from tfperf.trials.process import EngineProcess, Loaded
from tfperf.trials.trial import Trial

__all__ = ["PlanQueue", "Started", "WaitingProcesses"]

Started = tuple[EngineProcess, Loaded]


class PlanQueue:
    """A few threads that look at plans; a context manager, at whose end they end."""

    def __init__(self, look: Callable[[Plan, int], None], give_up: Callable[[], None]) -> None:
        """Start nothing yet.

        Args:
            look: looks at a plan; is told how many are left.
            give_up: ends what `look` waits for, when something else has gone wrong.
        """
        self._look, self._give_up = look, give_up
        self._pool = ThreadPoolExecutor(STARTERS.number)
        self._running: dict[Future[None], Plan] = {}
        self._later: list[Plan] = []

    def later(self, plans: Iterable[Plan]) -> None:
        """Look at these when a thread is free for which `run` has nothing better, or in `finish`."""
        self._later += plans

    def run(self, plans: Iterable[Plan], stop: Callable[[], bool]) -> list[Plan]:
        """Look at all of these.

        Args:
            stop: whether those that were not begun are to be left alone; is asked where there are some.

        Returns:
            Those that were left alone.
        """
        waiting = list(plans)
        wanted = set(waiting)
        return self._run(waiting, lambda: bool(waiting or wanted & set(self._running.values())), stop)

    def follow(self, more: Callable[[Collection[Plan]], Iterable[Plan]], stop: Callable[[], bool]) -> list[Plan]:
        """Look at whatever there is more of, until there is nothing more and nothing runs.

        Args:
            more: is asked whenever a thread is free: what to look at beside those that are being looked at now.
            stop: whether nothing more is to be begun; is asked where there is more.

        Returns:
            Those that were left alone.
        """
        waiting: list[Plan] = []
        left: list[Plan] = []

        def unfinished() -> bool:
            if not (waiting or left) and len(self._running) < STARTERS.number:
                found = list(more(self._running.values()))
                (left if found and stop() else waiting).extend(found)
            return bool(waiting or self._running)

        dropped = self._run(waiting, unfinished, stop)
        return [*dropped, *left]

    def finish(self) -> None:
        """Look at all that was put off, and wait for all that runs."""
        self._run([], lambda: bool(self._running or self._later), lambda: False)

    def _run(self, waiting: list[Plan], unfinished: Callable[[], bool], stop: Callable[[], bool]) -> list[Plan]:
        """Look at what waits; those that were left alone."""
        dropped: list[Plan] = []
        try:
            while unfinished():
                if waiting and stop():
                    dropped += waiting
                    waiting.clear()
                while len(self._running) < STARTERS.number and unfinished() and (waiting or self._later):
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
        return dropped

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


class WaitingProcesses:
    """The processes of plans that may be measured again. Threads may share it."""

    def __init__(self, launcher: Launcher, room: float) -> None:
        """Keep nothing yet.

        Args:
            launcher: starts and ends them.
            room: bytes that they may hold together.
        """
        self._launcher, self._room = launcher, room
        self._started: dict[Plan, Started] = {}
        self._changing = Lock()

    def take(self, plan: Plan) -> Started:
        """The process of a plan that was kept, or else a fresh one.

        Raises:
            TrialError: it does not start.
        """
        with self._changing:
            kept = self._started.pop(plan, None)
        if kept is not None and kept[0].alive:
            return kept
        return self._launcher.start(plan)

    def keep(self, plan: Plan, started: Started, wanted: Iterable[Trial]) -> None:
        """Keep this one too, as far as there is room; and end all that are not wanted.

        Args:
            wanted: those that will be measured again, the first before the others.
        """
        with self._changing:
            self._started[plan] = started
            room, staying = self._room, set[Plan]()
            for trial in wanted:
                if trial.plan in self._started.keys() - staying and (trial.memory or 0) <= room:
                    room -= trial.memory or 0
                    staying.add(trial.plan)
            self._end_all_but(staying)

    def end_others(self, staying: Collection[Plan]) -> None:
        """End all processes but these, so that what is taken next is a fresh one."""
        with self._changing:
            self._end_all_but(staying)

    def _end_all_but(self, staying: Collection[Plan]) -> None:
        for plan in self._started.keys() - staying:
            process, _ = self._started.pop(plan)
            self._launcher.end(process)


def _is_converted(plan: Plan) -> bool:
    return find_engine(plan.engine).format is not None
