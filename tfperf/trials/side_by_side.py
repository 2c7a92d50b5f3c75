"""Plans of one net, each in a process of its own: checked, then measured in turns.

One process runs at a time, as fast as if it were alone; the others stand still.
"""

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from tfperf.engines.plan import Plan
from tfperf.errors import EngineError
from tfperf.exports.servable import Servable
from tfperf.exports.signature import Signature
from tfperf.measure import Comparison, Doubt, Measurement, Progress, compare, measure
from tfperf.measure.memory import MemoryPeak
from tfperf.trials.process import EngineProcess, Loaded, PlanCall, store_arrays
from tfperf.trials.trial import Status, Trial, TrialError

__all__ = [
    "ANSWERS_ALIKE",
    "ROWS",
    "SETTLING_SECONDS",
    "Examples",
    "InTurns",
    "Turns",
    "answers_vary",
    "checked_trial",
    "failed_trial",
    "measure_in_turns",
    "measured_trial",
]

ROWS = 8
"""Rows that an engine's answers are checked on, at least, and two batches: one alone could be remembered."""

REST_AFTER = 8
"""Rounds after which a plan has no more turns that is far from the fastest, where only that is asked for."""

SETTLING_SECONDS = 0.02
"""Seconds of untimed calls after a process was paused: Linux wakes its threads on one processor,
and spreads them again some milliseconds later. LiteRT with two threads took 8 us a call then, and 20 us before."""

ANSWERS_ALIKE = Doubt(
    name="answers_alike",
    words="the net gives nearly the same outputs for different inputs, so comparing outputs proves little",
    advice="use trained weights, or inputs to which it gives different outputs",
)
"""Where not `answers_vary`."""


class Examples(NamedTuple):
    """What plans are checked with at one batch size, in files of `store_arrays`."""

    batch: int
    inputs: Path
    reference: Path

    @classmethod
    def store(
        cls, folder: Path, servable: Servable, batch: int, given: Sequence[NDArray[Any]] | None = None, seed: int = 0
    ) -> "Examples":
        """Write the inputs given, cut or repeated, or random ones, and what the net answers in float32.

        Args:
            given: one array for each input, (rows, ...); of two rows or more, so that not all answers are alike.

        Raises:
            EngineError: the net's own outputs are not finite.
            ValueError: the net does not take these inputs.
        """
        rows = batch * max(2, -(-ROWS // batch))
        arrays = servable.signature.examples(rows, given, seed)
        if given is not None:
            arrays = _each_batch_later(servable.signature, arrays, batch)

        def answers(*arrays: Any) -> Any:
            return servable.reference(arrays)

        reference = servable.signature.in_batches(answers, arrays, batch)
        for form, outputs in zip(servable.signature.outputs, reference, strict=True):
            if not np.isfinite(outputs).all():
                raise EngineError(
                    f"expected finite outputs of '{servable.name}' in float32, to compare engines with. "
                    f"Received: NaN or infinity in {form.name}; check the weights, and give real inputs"
                )
        return cls(
            batch,
            store_arrays(folder / f"inputs{batch}.npz", arrays),
            store_arrays(folder / f"reference{batch}.npz", reference),
        )


def answers_vary(servable: Servable) -> bool:
    """Whether two random inputs have different answers. Those of a deep net with fresh weights may be all alike."""
    answers = servable.reference(servable.signature.random_inputs(2))
    pairs = [answer for answer in answers if answer.shape[:1] == (2,)]  # none of a net whose batch is fixed
    return not pairs or any(not np.allclose(one, other, rtol=1e-4, atol=0.0) for one, other in pairs)


def checked_trial(
    process: EngineProcess,
    loaded: Loaded,
    examples: Examples,
    *,
    tolerance: float | None = None,
    same_top1: bool = False,
) -> Trial:
    """The trial of a plan whose process answers rightly; nothing is measured yet.

    Args:
        tolerance, same_top1: as `check_runner` takes them.

    Raises:
        TrialError: it answers wrongly, its process died or hung, or its proof is none.
    """
    agreement, first_call_seconds = process.check(*examples, tolerance=tolerance, same_top1=same_top1)
    try:
        return Trial(
            plan=process.plan,
            batch=examples.batch,
            status=Status.RAN,
            proof=loaded.proof,
            size=loaded.size,
            load_seconds=loaded.load_seconds,
            first_call_seconds=first_call_seconds,
            agreement=agreement,
        )
    except ValidationError as error:  # an engine of another package may say anything
        (first, *_) = error.errors()
        where = ".".join(map(str, first["loc"]))
        raise TrialError(Status.REFUSED, f"{process.plan}: its {where}: {first['msg']}") from error


def failed_trial(plan: Plan, batch: int, error: TrialError) -> Trial:
    """The trial of a plan that does not run."""
    return Trial(plan=plan, batch=batch, status=error.status, reason=printable(str(error)))


def measured_trial(trial: Trial, work: PlanCall, measurement: Measurement) -> Trial:
    """A trial with what was measured of its work."""
    first_call = {"first_call_seconds": trial.first_call_seconds}  # which the check of the answers made
    found = {"measurement": measurement.model_copy(update=first_call), "cores_used": work.cores_used}
    return trial.model_copy(update=found)


class Turns:
    """Whose turn it is among processes that stand still but in their turns."""

    def __init__(self) -> None:
        """Nobody's."""
        self._turn: InTurns | None = None

    def take(self, work: "InTurns") -> bool:
        """Have what runs now stand still, and this go on; whether it stood still."""
        if self._turn is work:
            return False
        if self._turn is not None:
            self._turn.rest()
        self._turn = work
        work.wake()
        work.settle()
        return True


class InTurns:
    """One work among several, as `tfperf.measure.compare` takes work that times itself."""

    def __init__(
        self,
        work: Any,
        turns: Turns,
        rest: Callable[[], object] = lambda: None,
        wake: Callable[[], object] = lambda: None,
        *,
        settling_seconds: float = SETTLING_SECONDS,
    ) -> None:
        """Take no turn yet.

        Args:
            work: as `tfperf.measure.compare` takes work that times itself.
            rest, wake: have what does the work stand still, and go on.
        """
        self._work, self._turns, self.rest, self.wake = work, turns, rest, wake
        self._settling_seconds = settling_seconds

    def __call__(self) -> None:
        """Call it once; settling has done so, where it stood still."""
        if not self._turns.take(self):
            self._work()

    def timed(self, calls: int) -> float:
        """Seconds of so many calls together, as the process has measured them."""
        self._turns.take(self)
        return float(self._work.timed(calls))

    def memory(self) -> MemoryPeak:
        """The most memory of the process."""
        self._turns.take(self)
        peak: MemoryPeak = self._work.memory()
        return peak

    @property
    def cores_used(self) -> float:
        """Processors busy on average, in all calls."""
        return float(self._work.cores_used)

    def settle(self) -> None:
        """Call it, more and more often, until its threads are where they stay."""
        until, calls = time.monotonic() + self._settling_seconds, 1
        while calls:
            seconds = float(self._work.timed(calls)) / calls
            left = until - time.monotonic()
            calls = min(2 * calls, math.ceil(left / seconds)) if left > 0 and seconds > 0 else 0


def measure_in_turns(
    runs: Sequence[tuple[Trial, PlanCall]],
    time_limit: float,
    on_progress: Callable[[Progress], None] | None = None,
    *,
    which_is_fastest: bool = False,
) -> tuple[list[Trial], Comparison | None]:
    """Measure the work of trials side by side, each alone in its turn: the processes of the others stand still.

    A process that dies or hangs meanwhile makes its trial a failed one, and the others are measured again.

    Args:
        time_limit: seconds of measuring.
        which_is_fastest: whether that is all that is asked for, and those that are far from it may have fewer turns.

    Returns:
        The trials in their order, and the comparison of those that were measured, under their names; None: they are
        fewer than two.
    """
    trials = {trial.name: trial for trial, _ in runs}
    works = {trial.name: work for trial, work in runs}
    while works:
        try:
            with contextlib.ExitStack() as stack:
                for host in {work.host for work in works.values()}:
                    stack.enter_context(host.taking_turns())
                found = _compared(_in_turns(works), time_limit, on_progress, which_is_fastest)
        except TrialError:
            for name, work in list(works.items()):
                if work.failure is not None:
                    trials[name] = failed_trial(trials[name].plan, trials[name].batch, work.failure)
                    del works[name]
            continue
        measurements = found.measurements if isinstance(found, Comparison) else (found,)
        for (name, work), measurement in zip(works.items(), measurements, strict=True):
            trials[name] = measured_trial(trials[name], work, measurement)
        if isinstance(found, Measurement):
            break
        kept = tuple(trials[name].measurement for name in works)
        return list(trials.values()), found.model_copy(update={"measurements": kept})
    return list(trials.values()), None


def _in_turns(works: Mapping[str, PlanCall]) -> dict[str, InTurns]:
    turns = Turns()
    return {name: InTurns(work, turns, work.host.rest, work.host.wake) for name, work in works.items()}


def _compared(
    works: Mapping[str, Any],
    time_limit: float,
    on_progress: Callable[[Progress], None] | None,
    which_is_fastest: bool,
) -> Comparison | Measurement:
    if len(works) > 1:
        return compare(
            works,
            time_limit=time_limit,
            turn_seconds=SETTLING_SECONDS,  # as long as changing over takes
            rest_after=REST_AFTER if which_is_fastest else None,
            on_progress=on_progress,
        )
    ((name, work),) = works.items()
    return measure(work, name=name, time_limit=time_limit, on_progress=on_progress)


def _each_batch_later(signature: Signature, arrays: Sequence[NDArray[Any]], batch: int) -> tuple[NDArray[Any], ...]:
    """Each batch turned by a row more than the one before: all are alike where few rows were repeated."""

    def turned(array: NDArray[Any]) -> NDArray[Any]:
        index = np.arange(len(array))
        return np.asarray(array[index // batch * batch + (index + index // batch) % batch])

    return tuple(turned(array) if form.batched else array for form, array in zip(signature.inputs, arrays, strict=True))


def printable(words: str) -> str:
    """Words as a file of results takes them."""
    return "".join(letter if letter.isprintable() else " " for letter in words)[:4000]
