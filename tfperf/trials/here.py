"""Plans in this process, where no other can open the net: what a notebook's own classes leave."""

import time
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from tfperf.engines.building import build
from tfperf.engines.plan import Plan
from tfperf.errors import TfperfError
from tfperf.trials.child import TrialError
from tfperf.trials.process import Loaded
from tfperf.trials.trial import Status
from tfperf.trials.worker import Worker, answer_of

if TYPE_CHECKING:
    from tfperf.exports.servable import Servable

__all__ = ["Here"]


class Here:
    """Answers as a plan's process does. It has the threads of this process, no limits, and never stands still."""

    alive = True

    def __init__(self) -> None:
        """Start nothing."""
        self._worker = Worker()

    def build(self, plan: Plan, servable: "Servable") -> Loaded:
        """Make a plan real.

        Raises:
            TrialError: the engine cannot, or the plan asks for threads.
        """
        if plan.threads is not None:
            raise TrialError(Status.REFUSED, f"{plan}: the net's code is in this process alone, with its threads")
        began = time.perf_counter()
        try:
            runner = build(servable, plan)
        except TfperfError as error:
            raise TrialError(Status.REFUSED, str(error)) from error
        return Loaded(**self._worker.take(runner, time.perf_counter() - began))

    def ask(self, name: str, **arguments: Any) -> Any:
        """The answer to a request.

        Raises:
            TrialError: the worker says that it cannot.
        """
        told = answer_of(self._worker, name, arguments)
        if "error" in told:
            raise TrialError(Status(told["status"]), told["error"])
        return told["answer"]

    def paused(self) -> AbstractContextManager[None]:
        """Change nothing."""
        return nullcontext()

    taking_turns = paused

    def rest(self) -> None:
        """Do nothing: it does nothing between requests."""

    wake = rest

    def close(self) -> None:
        """Let the plan go."""
        self._worker = Worker()
