"""Every engine on one net, side by side: who runs it, how fast, and with the same answers?"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from pydantic import Field

from tfperf.engines.building import check_numbers
from tfperf.engines.checking import check_same_top1
from tfperf.engines.plan import Plan
from tfperf.exports.keras_nets import own_constants
from tfperf.exports.servable import Servable
from tfperf.files import scratch_folder
from tfperf.measure import Comparison, Progress
from tfperf.measure.comparing import TIME_LIMIT
from tfperf.measure.value import Value
from tfperf.system import thread_words
from tfperf.trials.launching import Launcher
from tfperf.trials.process import EngineProcess, Loaded, Origin, PlanCall
from tfperf.trials.side_by_side import Examples, answers_vary, checked_trial, failed_trial, measure_in_turns
from tfperf.trials.trial import Trial, TrialError

__all__ = ["Survey", "survey"]


class Survey(Value):
    """Plans with one batch size, measured in turns. Immutable."""

    batch: int = Field(ge=1)
    trials: tuple[Trial, ...]
    comparison: Comparison | None = Field(description="None: fewer than two of them ran")
    answers_vary: bool = Field(
        default=True, description="whether the net answers differently to different inputs, as a check needs"
    )

    @property
    def ran(self) -> list[Trial]:
        """The plans that were measured."""
        return [row for row in self.trials if row.measurement is not None]

    @property
    def title(self) -> str:
        """What its plans have in common, in words."""
        threads = self.trials[0].plan.threads if self.trials else None
        return f"batch {self.batch}" + (f", {thread_words(threads)}" if threads else "")


def survey(
    servable: Servable,
    origin: Origin,
    plans: Mapping[int, Sequence[Plan]],
    inputs: Mapping[int, Sequence[NDArray[Any]]],
    *,
    representative: Sequence[NDArray[Any]] | None = None,
    tolerance: float | None = None,
    same_top1: bool = False,
    time_limit: float = TIME_LIMIT,
    cache: Path | None = None,
    on_step: Callable[[str], object] = lambda _: None,
    on_progress: Callable[[Progress], None] | None = None,
) -> list[Survey]:
    """Run plans in turns, each in a process of its own, for each batch size.

    A plan that is not installed, cannot take the net, answers wrongly, hangs or dies is a row with its reason; at the
    next batch size it is tried again.

    Args:
        servable: the net.
        origin: how another process opens it.
        plans: batch size -> engines with their settings. Threads alike: they are measured side by side.
        inputs: batch size -> one array for each input, (rows, ...): best two batches, as one could be remembered.
        representative: inputs from which `int8_static` takes its scales; None: random ones.
        tolerance: largest relative error of an answer that passes; None: that of each plan's precision.
        same_top1: whether the largest answer of each row must be the same, too.
        time_limit: seconds of measuring for each batch size, after everything has been loaded and called.
        cache: folder of conversions; None: in tfperf's own cache.
        on_step: told in words what is done next.
        on_progress: told how far the measuring is.

    Raises:
        EngineError: the net takes or gives strings.
        ValueError: the net does not take these inputs, or has no largest answers to compare.
        OSError: the cache cannot be written.
    """
    check_numbers(servable.signature)
    if same_top1:
        check_same_top1(servable.signature)
    vary = answers_vary(servable)
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(scratch_folder("tfperf-survey-"))
        held = bool(own_constants(servable.net))
        if held:  # another process that builds the net has other numbers: it is given the graph
            folder = scratch / "graph" / servable.name
            folder.mkdir(parents=True)
            servable.save(folder)
            origin = Origin(str(folder))
        launcher = stack.enter_context(
            Launcher(servable, origin, scratch, representative=representative, cache=cache, graph_only=held)
        )
        running: dict[Plan, tuple[EngineProcess, Loaded]] = {}
        surveys = []
        for batch in plans:
            examples = Examples.store(scratch, servable, batch, inputs[batch])
            trials: list[Trial] = []
            runs: list[tuple[Trial, PlanCall]] = []
            for plan in plans[batch]:
                on_step(f"{plan}: loading, and checking its answers at batch {batch}")
                try:
                    if plan in running and not running[plan][0].alive:  # it died or hung at another batch size
                        launcher.end(running.pop(plan)[0])
                    if plan not in running:
                        running[plan] = launcher.start(plan)
                    process, loaded = running[plan]
                    trials.append(checked_trial(process, loaded, examples, tolerance=tolerance, same_top1=same_top1))
                    runs.append((trials[-1], process.work(batch)))
                except TrialError as error:
                    trials.append(failed_trial(plan, batch, error))
            on_step(f"measuring {len(runs)} plans in turns at batch {batch}")
            measured, comparison = measure_in_turns(runs, time_limit, on_progress)
            found = {trial.name: trial for trial in measured}
            surveys.append(
                Survey(
                    batch=batch,
                    trials=tuple(found.get(trial.name, trial) for trial in trials),
                    comparison=comparison,
                    answers_vary=vary,
                )
            )
        return surveys
