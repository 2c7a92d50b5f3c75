"""A plan on its host, which is a process of its own as a rule."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Generic, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from tfperf.engines.plan import Plan
from tfperf.exports.signature import Signature
from tfperf.measure.agreement import Agreement
from tfperf.measure.memory import MemoryPeak
from tfperf.trials.host import Host
from tfperf.trials.trial import TrialError

__all__ = ["Checked", "EngineProcess", "Loaded", "Origin", "PlanCall", "PlanProcess", "store_arrays"]

AnyPlan = TypeVar("AnyPlan")


class Origin(NamedTuple):
    """How a process opens the model again: the arguments of `tfperf.exports.open_model`."""

    model: str
    signature: str | None = None
    seed: int = 0


class Loaded(NamedTuple):
    """What a process says when the plan is made real."""

    proof: dict[str, str]
    size: int | None
    """Bytes on disk of what the engine loads."""
    load_seconds: float
    """For importing the engine and loading the net."""


class Checked(NamedTuple):
    """What a process says of its answers."""

    agreement: Agreement
    first_call_seconds: float


class PlanProcess(Generic[AnyPlan]):
    """One plan on a host that ends with this object's `with` block, whatever happens in either.

    Attributes:
        plan: how it runs.
        host: where it runs.
    """

    def __init__(self, plan: AnyPlan, host: Host) -> None:
        """Take a host; nothing is loaded there yet."""
        self.plan, self.host = plan, host

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return self.host.alive

    def close(self) -> None:
        """End the process and all that it started."""
        self.host.close()

    def __enter__(self) -> Self:
        """Close at the end of the `with` block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def ask(self, name: str, **arguments: Any) -> Any:
        """The answer to a request.

        Raises:
            TrialError: the plan cannot be made real, or the process died or did not answer; names the plan.
        """
        try:
            return self.host.ask(name, **arguments)
        except TrialError as error:
            raise error.named(self.plan) from error


class EngineProcess(PlanProcess[Plan]):
    """Runs one plan of an engine."""

    def load(self, folder: Path, signature: Signature) -> Loaded:
        """Load what was converted for the plan.

        Raises:
            TrialError: the engine cannot, or the process died or did not answer.
        """
        plan, form = self.plan.model_dump_json(), signature.model_dump_json()
        return Loaded(**self.ask("load", plan=plan, signature=form, folder=str(folder)))

    def build(self, origin: Origin, weights: Path, signature: Signature) -> Loaded:
        """Open the model there, and call the net itself.

        Args:
            weights: file of `store_arrays`.
            signature: with the names that its inputs and outputs have here.

        Raises:
            TrialError: the engine cannot, or the process died or did not answer.
        """
        plan, form = self.plan.model_dump_json(), signature.model_dump_json()
        return Loaded(**self.ask("build", plan=plan, origin=origin, weights=str(weights), signature=form))

    def check(
        self,
        batch: int,
        inputs: Path,
        reference: Path,
        tolerance: float | None = None,
        same_top1: bool = False,
    ) -> Checked:
        """Compare its answers with the reference's, both in files of `store_arrays`, batch by batch.

        Args:
            inputs: one batch, or several one after the other.
            tolerance: largest relative error that passes; None: that of the plan's precision.
            same_top1: whether the largest answer of each row must be the same.

        Raises:
            TrialError: the answers are wrong, or the process died or did not answer.
        """
        told = self.ask(
            "check",
            batch=batch,
            inputs=str(inputs),
            reference=str(reference),
            tolerance=tolerance,
            same_top1=same_top1,
        )
        return Checked(Agreement.model_validate_json(told["agreement"]), told["first_call_seconds"])

    def accuracy(self, batch: int, inputs: Path, labels: Path) -> float:
        """The share of labels that its answers find, with inputs and labels in files of `store_arrays`.

        Raises:
            TrialError: the process died or did not answer, or an answer is not finite.
        """
        return float(self.ask("accuracy", batch=batch, inputs=str(inputs), labels=str(labels)))

    def work(self, batch: int) -> "PlanCall":
        """The call with a batch that was checked, to be measured."""
        return PlanCall(self, batch=batch)


class PlanCall:
    """What a process does again and again, as `tfperf.measure.compare` takes work that times itself.

    Attributes:
        failure: why it can no longer be asked; None: it can.
    """

    def __init__(self, process: PlanProcess[Any], **arguments: Any) -> None:
        """Ask nothing yet.

        Args:
            arguments: of its worker's `timed`, beside the number of calls.
        """
        self._process, self._arguments = process, arguments
        self.failure: TrialError | None = None
        self._seconds = self._cpu_seconds = 0.0

    def __call__(self) -> None:
        """Call it once."""
        self.timed(1)

    def timed(self, calls: int) -> float:
        """Seconds of so many calls together, as the process has measured them."""
        told = self._ask("timed", calls=calls, **self._arguments)
        self._seconds += told["seconds"]
        self._cpu_seconds += told["cpu_seconds"]
        return float(told["seconds"])

    def memory(self) -> MemoryPeak:
        """The most memory of the process."""
        return MemoryPeak.model_validate_json(self._ask("memory"))

    @property
    def host(self) -> Host:
        """Where it is done."""
        return self._process.host

    @property
    def cores_used(self) -> float:
        """Processors busy on average, in all calls that were timed."""
        return self._cpu_seconds / self._seconds if self._seconds else 0.0

    def _ask(self, name: str, **arguments: Any) -> Any:
        try:
            return self._process.ask(name, **arguments)
        except TrialError as error:
            self.failure = error
            raise


def store_arrays(file: Path, arrays: Sequence[NDArray[Any]]) -> Path:
    """Write arrays, in order, for a process to read."""
    with file.open("wb") as target:
        np.savez(target, **{str(index): array for index, array in enumerate(arrays)})  # type: ignore[arg-type]
    return file
