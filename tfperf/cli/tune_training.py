"""`tfperf tune --train`."""

import json as json_module
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from tfperf.measure import Progress
    from tfperf.trials.training.trial import TrainingTrial
    from tfperf.tuning import TunedTraining

__all__ = ["tune_training", "write_each"]

KEPT = "what the search found is kept: run the same command with another place, and it goes on from there"
"""After an answer that cannot be written."""


def tune_training(
    model: str,
    data: str | None,
    *,
    batch: str | None,
    threads: str | None,
    precision: str,
    memory_limit: str | None,
    trial_time: float,
    time_limit: float | None,
    json: Path | None,
    report: Path | None,
    script: Path | None,
    fresh: bool,
) -> None:
    """Find the fastest way to train a model that learns as it does in float32."""
    from tfperf.cli.options import batch_sizes, byte_count, check_writable, chosen_from, whole_numbers

    if data is None:
        raise typer.BadParameter("expected --data with --train, as --data fashion_mnist or --data my_data.py:function")
    for option, target in (("--json", json), ("--script", script)):
        check_writable(option, target or Path("results", "tune.json"))
    sizes = None if batch is None else batch_sizes("--batch", batch)
    counts = None if threads is None else whole_numbers("--threads", threads)
    limit = None if memory_limit is None else byte_count("--memory-limit", memory_limit)
    chosen = chosen_from(("float32", "bfloat16"), "--precision", precision)

    from tfperf.errors import INTERRUPTED, error_message
    from tfperf.importing import load_tensorflow

    load_tensorflow()
    from tfperf.files import writing_whole
    from tfperf.report.training import check_training_page_path
    from tfperf.training.plan import CHANGES
    from tfperf.tuning import tune_training as search

    if report is not None:
        check_training_page_path(report)
    with TrainingDisplay() as display:
        try:
            tuned = search(
                model,
                data,
                batch_size=sizes,
                changes=[name for name in CHANGES if name != "mixed_bfloat16" or "bfloat16" in chosen],
                threads=counts,
                memory_limit=limit,
                trial_seconds=trial_time,
                time_limit=time_limit,
                fresh=fresh,
                listener=display,
            )
        except (OSError, ValueError) as error:
            raise typer.BadParameter(error_message(error)) from error

    def write_script(path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with writing_whole(path) as file:
            file.write(tuned.best.script().encode())

    name = tuned.outcome.model
    writers: list[tuple[Path | None, Callable[[Path], object]]] = [
        (json or Path("results", f"tune_training_{name}.json"), tuned.to_json),
        (script or Path("results", f"train_{name}.py"), write_script),
        (report, tuned.report),
    ]
    written: list[str] = []
    try:
        write_each(writers, written)
    finally:
        display.answer(tuned, written)
    if tuned.outcome.ended == "interrupted":
        raise typer.Exit(INTERRUPTED)
    tuned.forget()


def write_each(writers: Iterable[tuple[Path | None, Callable[[Path], object]]], written: list[str]) -> None:
    """Write the files of an answer, and note each that is written.

    Args:
        writers: the place of each, None where it is not asked for, and what writes it there.
        written: gets the places.

    Raises:
        typer.BadParameter: one cannot be written; says that the search need not be done again.
    """
    from tfperf.errors import TfperfError, error_message

    try:
        for place, write in writers:
            if place is not None:
                write(place)
                written.append(str(place))
    except (OSError, TfperfError) as error:
        raise typer.BadParameter(f"{error_message(error)}; {KEPT}") from error


class TrainingDisplay:
    """Watches a search; a context manager. The answer goes to standard output: as tables, or as a line of JSON."""

    def __init__(self) -> None:
        """Find out who reads."""
        from tfperf.cli.steps import Steps

        self._steps = Steps("opening the model")
        self._is_terminal = sys.stdout.isatty()
        self._began = time.monotonic()

    def phase(self, words: str) -> None:
        """Show what begins."""
        self._steps.begin(words)

    def looked(self, trial: "TrainingTrial", best: "TrainingTrial | None") -> None:
        """Show a finished trial."""
        if not self._is_terminal:
            told: dict[str, Any] = {"trial": trial.name, "status": trial.status}
            told |= {"reason": trial.reason} if trial.reason else {"examples_per_second": trial.examples_per_second}
            _print_line(told)
            return
        words = (
            f"{trial.examples_per_second:,.4g} examples/s" if trial.measurement else f"{trial.status}: {trial.reason}"
        )
        self._steps.note(f"{time.monotonic() - self._began:4.0f} s  {trial.name}: {words}")
        if best is not None:
            self._steps.begin(
                f"best so far: {best.name}, {best.examples_per_second:,.4g} examples/s; Ctrl-C ends with it"
            )

    def measuring(self, progress: "Progress") -> None:
        """Show how far the final is."""
        self._steps.show(progress)

    def answer(self, tuned: "TunedTraining", files: list[str]) -> None:
        """Say what was found, and where it was written."""
        from rich.console import Console

        from tfperf.errors import escape_unprintable

        outcome = tuned.outcome
        if not self._is_terminal:
            told = {"answer": str(tuned), "winner": outcome.winner, "equals": outcome.equals, "ended": outcome.ended}
            _print_line(told | {"seconds": round(outcome.seconds, 3), "files": files})
            return
        console = Console(highlight=False)
        console.print(str(tuned), markup=False, style="bold")
        console.print()
        console.print(tuned.trials())
        console.print(f"\nwritten: {escape_unprintable(', '.join(files))}", markup=False)

    def __enter__(self) -> "TrainingDisplay":
        """Show it from now on, on a terminal."""
        self._steps.__enter__()
        return self

    def __exit__(self, *details: object) -> None:
        """Take it away."""
        self._steps.__exit__(*details)


def _print_line(value: dict[str, Any]) -> None:
    print(json_module.dumps(value), file=sys.stdout, flush=True)
