"""Every engine on one net, side by side: who runs it, how fast, and with the same answers?"""

import contextlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tfperf.engines.building import check_numbers, conversions_folder
from tfperf.engines.catalog import find_engine, missing
from tfperf.engines.conversions import Conversions
from tfperf.engines.plan import Plan
from tfperf.engines.process import EngineProcess, Loaded, Work, store_arrays
from tfperf.errors import EngineError, TfperfError
from tfperf.exports.servable import Servable
from tfperf.measure import Agreement, Comparison, Measurement, Progress, compare, measure
from tfperf.measure.comparison import TIME_LIMIT
from tfperf.measure.value import Count, Name, Text, Value

__all__ = ["Model", "Row", "State", "Survey", "median_seconds", "survey"]


class State(StrEnum):
    """How far a plan came."""

    RAN = "ran"
    MISSING = "not installed"
    REFUSED = "refused"
    FAILED = "failed"


class Row(Value):
    """One plan with one batch size."""

    plan: Plan
    batch: int = Field(ge=1)
    state: State
    reason: Text = Field(default="", description="why it did not run")
    proof: dict[Name, Text] = Field(default_factory=dict, description="what shows that the plan took effect")
    size: Count | None = Field(default=None, description="bytes on disk of what the engine loads")
    load_seconds: float | None = Field(default=None, ge=0, description="for importing the engine and loading the net")
    first_call_seconds: float | None = Field(default=None, ge=0)
    agreement: Agreement | None = None
    measurement: Measurement | None = None
    cores_used: float | None = Field(default=None, ge=0, description="processors busy on average while it ran")

    @property
    def name(self) -> str:
        """Of its measurement: the plan, with the batch size."""
        return str(self.plan.model_copy(update={"batch": self.batch}))


class Survey(Value):
    """Plans with one batch size, measured in turns. Immutable."""

    batch: int = Field(ge=1)
    rows: tuple[Row, ...]
    comparison: Comparison | None = Field(description="None: fewer than two of them ran")
    answers_vary: bool = Field(
        default=True, description="whether the net answers differently to different inputs, as a check needs"
    )

    @property
    def ran(self) -> list[Row]:
        """The plans that were measured."""
        return [row for row in self.rows if row.measurement is not None]

    @property
    def title(self) -> str:
        """What its plans have in common, in words."""
        threads = self.rows[0].plan.threads if self.rows else None
        return f"batch {self.batch}" + (f", {threads} thread{'s' * (threads > 1)}" if threads else "")


class Model(NamedTuple):
    """How a process opens the model again: the arguments of `tfperf.exports.open_model`."""

    model: str
    signature: str | None = None
    seed: int = 0


def survey(
    servable: Servable,
    model: Model,
    plans: Mapping[int, Sequence[Plan]],
    inputs: Mapping[int, Sequence[NDArray[Any]]],
    *,
    representative: Sequence[NDArray[Any]] | None = None,
    time_limit: float = TIME_LIMIT,
    cache: Path | None = None,
    on_step: Callable[[str], object] = lambda _: None,
    on_progress: Callable[[Progress], None] | None = None,
) -> list[Survey]:
    """Run plans in turns, each in a process of its own, for each batch size.

    A plan that is not installed, cannot take the net, answers wrongly, hangs or dies is a row with its reason.

    Args:
        servable: the net.
        model: how another process opens it, for engines that call the net itself.
        plans: batch size -> engines with their settings. Threads alike: they are measured side by side.
        inputs: batch size -> one array for each input, (batch, ...).
        representative: inputs from which `int8_static` takes its scales; None: random ones.
        time_limit: seconds of measuring for each batch size, after everything has been loaded and called.
        cache: folder of conversions; None: in tfperf's own cache.
        on_step: told in words what is done next.
        on_progress: told how far the measuring is.

    Raises:
        EngineError: the net takes or gives strings.
        ValueError: the net does not take these inputs.
        OSError: the cache cannot be written.
    """
    check_numbers(servable.signature)
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        conversions = Conversions(servable, cache or conversions_folder(), representative)
        bench = _Bench(servable, model, scratch, conversions, stack, on_step, on_progress)
        return [bench.survey(batch, plans[batch], inputs[batch], time_limit) for batch in plans]


class _Bench:
    """The processes of a survey; each plan has one, for all batch sizes."""

    def __init__(
        self,
        servable: Servable,
        model: Model,
        scratch: Path,
        conversions: Conversions,
        stack: contextlib.ExitStack,
        on_step: Callable[[str], object],
        on_progress: Callable[[Progress], None] | None,
    ) -> None:
        self._stack, self._on_step, self._on_progress = stack, on_step, on_progress
        self._servable, self._model, self._scratch, self._conversions = servable, model, scratch, conversions
        weights = servable.net.get_weights() if servable.net is not None else []
        self._answers_vary = _answers_vary(servable)
        self._weights = store_arrays(scratch / "weights.npz", weights)
        self._processes: dict[Plan, tuple[EngineProcess, Loaded]] = {}

    def survey(self, batch: int, plans: Sequence[Plan], inputs: Sequence[NDArray[Any]], time_limit: float) -> Survey:
        given = store_arrays(self._scratch / f"inputs{batch}.npz", inputs)
        reference = store_arrays(self._scratch / f"reference{batch}.npz", self._servable.reference(inputs))
        rows, works = {}, {}
        for plan in plans:
            self._on_step(f"{plan}: loading, and checking its answers at batch {batch}")
            rows[plan], work = self._prepared(plan, batch, given, reference)
            if work is not None:
                works[plan] = work
        comparison = None
        while works:
            self._on_step(f"measuring {len(works)} plans in turns at batch {batch}")
            try:
                comparison = self._measured(rows, works, time_limit)
                break
            except EngineError:
                for plan, work in [(plan, work) for plan, work in works.items() if work.failure]:
                    rows[plan] = rows[plan].model_copy(
                        update={"state": State.FAILED, "reason": _printable(work.failure)}
                    )
                    del works[plan]
        return Survey(batch=batch, rows=tuple(rows.values()), comparison=comparison, answers_vary=self._answers_vary)

    def _prepared(self, plan: Plan, batch: int, inputs: Path, reference: Path) -> tuple[Row, Work | None]:
        try:
            if wanted := missing(find_engine(plan.engine)):
                return Row(plan=plan, batch=batch, state=State.MISSING, reason=wanted), None
            process, loaded = self._process(plan)
            checked = process.check(batch, inputs, reference)
        except TfperfError as error:
            return Row(plan=plan, batch=batch, state=State.REFUSED, reason=_printable(str(error))), None
        row = Row(
            plan=plan,
            batch=batch,
            state=State.RAN,
            proof=loaded.proof,
            size=loaded.size,
            load_seconds=loaded.load_seconds,
            first_call_seconds=checked.first_call_seconds,
            agreement=checked.agreement,
        )
        return row, process.work(batch)

    def _process(self, plan: Plan) -> tuple[EngineProcess, Loaded]:
        if plan not in self._processes:
            engine = find_engine(plan.engine)
            engine.check(plan)
            folder = self._conversions.folder(plan) if engine.format is not None else None
            process = self._stack.enter_context(EngineProcess(plan))
            if folder is not None:
                loaded = process.load(folder, self._servable.signature)
            else:
                loaded = process.build(*self._model, self._weights)
            self._processes[plan] = process, loaded
        return self._processes[plan]

    def _measured(self, rows: dict[Plan, Row], works: Mapping[Plan, Work], time_limit: float) -> Comparison | None:
        named: dict[str, Any] = {rows[plan].name: work for plan, work in works.items()}
        comparison = None
        if len(named) > 1:
            comparison = compare(named, time_limit=time_limit, on_progress=self._on_progress)
            measurements = comparison.measurements
        else:
            ((name, work),) = named.items()
            measurements = (measure(work, name=name, time_limit=time_limit, on_progress=self._on_progress),)
        for (plan, work), measurement in zip(works.items(), measurements, strict=True):
            first = {"first_call_seconds": rows[plan].first_call_seconds}  # which the check of the answers made
            found = {"measurement": measurement.model_copy(update=first), "cores_used": work.cores_used}
            rows[plan] = rows[plan].model_copy(update=found)
        if comparison is None:
            return None
        return comparison.model_copy(update={"measurements": tuple(rows[plan].measurement for plan in works)})


def _answers_vary(servable: Servable) -> bool:
    """Whether two random inputs have different answers. Those of a deep net with fresh weights may be all alike."""
    answers = servable.reference(servable.signature.random_inputs(2))
    pairs = [answer for answer in answers if answer.shape[:1] == (2,)]  # none of a net whose batch is fixed
    return not pairs or any(not np.allclose(one, other, rtol=1e-4, atol=0.0) for one, other in pairs)


def median_seconds(row: Row) -> float:
    """Of a call; infinite for a plan that did not run."""
    return row.measurement.interval.estimate if row.measurement else float("inf")


def _printable(words: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in words)[:4000]
