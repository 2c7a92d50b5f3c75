"""Processes that wait for their next round: a start takes longer than many a measurement."""

from collections.abc import Collection, Iterable
from threading import Lock

from tfperf.engines.plan import Plan
from tfperf.trials.launching import Launcher
from tfperf.trials.process import EngineProcess, Loaded
from tfperf.trials.trial import Trial

__all__ = ["Kept", "Started"]

Started = tuple[EngineProcess, Loaded]


class Kept:
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
