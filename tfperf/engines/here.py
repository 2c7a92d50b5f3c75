"""A plan in this process, where no other can open the net: what a notebook's own classes leave."""

import time
from typing import TYPE_CHECKING, Any

from tfperf.engines.building import build
from tfperf.engines.child import TrialError
from tfperf.engines.plan import Plan
from tfperf.engines.process import EngineProcess, Loaded
from tfperf.engines.trial import Status
from tfperf.engines.worker import Worker, answer_of
from tfperf.errors import TfperfError

if TYPE_CHECKING:
    from tfperf.exports.servable import Servable

__all__ = ["PlanHere"]


class PlanHere(EngineProcess):
    """Answers as a plan's process does, but has no child. It has the threads of this process, and no limits."""

    def __init__(self, plan: Plan, servable: "Servable") -> None:
        """Make the plan real.

        Raises:
            TrialError: the engine cannot, or the plan asks for threads.
        """
        self.plan = plan
        self._worker = Worker()
        if plan.threads is not None:
            raise TrialError(Status.REFUSED, f"{plan}: the net's code is in this process alone, with its threads")
        began = time.perf_counter()
        try:
            runner = build(servable, plan)
        except TfperfError as error:
            raise TrialError(Status.REFUSED, str(error)) from error
        self.loaded = Loaded(**self._worker.take(runner, time.perf_counter() - began))

    @property
    def alive(self) -> bool:
        """Whether it can be asked: always."""
        return True

    def close(self) -> None:
        """Let the plan go."""
        self._worker = Worker()

    def _ask(self, name: str, **arguments: Any) -> Any:
        told = answer_of(self._worker, name, arguments)
        if "error" in told:
            raise TrialError(Status(told["status"]), told["error"])
        return told["answer"]
