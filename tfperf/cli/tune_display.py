"""How far a tuning is: a live table on a terminal, lines of JSON elsewhere."""

import json
import sys
import time
from collections import Counter
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from tfperf.errors import escape_unprintable, shortened
from tfperf.measure import Progress
from tfperf.measure.words import format_interval, format_seconds
from tfperf.report.tables import bare_table, with_notes
from tfperf.report.tuning import summary_table, trial_table
from tfperf.trials.trial import Status, Trial
from tfperf.tuning.tuned import Tuned

__all__ = ["Display"]

SHOWN = 8
"""Trials in the live table, the latest of them."""

REASON_LETTERS = 60
"""Letters of a reason in the live table; all of it is in the results."""


class Display:
    """Watches a search; a context manager. The answer goes to standard output: as tables, or as a line of JSON."""

    def __init__(self) -> None:
        """Find out who reads."""
        self._console = Console(highlight=False)
        self._began = time.monotonic()
        self._phase, self._detail = "opening the model", ""
        self._latest: list[Trial] = []
        self._best: Trial | None = None
        self._counts: Counter[Status] = Counter()
        self._left = 0
        self._live = Live(console=self._console, transient=True, get_renderable=self._picture, refresh_per_second=4)

    def phase(self, words: str) -> None:
        """Show what begins."""
        self._phase, self._detail = words, ""

    def looked(self, trial: Trial, best: Trial | None, left: int) -> None:
        """Show a finished trial."""
        self._latest = [*self._latest, trial][-SHOWN:]
        self._best, self._left = best, left
        self._counts[trial.status] += 1
        if not self._console.is_terminal:
            _print_line(_as_json(trial))

    def measuring(self, progress: Progress) -> None:
        """Show how far a round is."""
        left = max(0.0, progress.time_limit - progress.seconds)
        self._detail = f"known to {progress.half_width:.1%}, at most {left:.0f} s more"

    def answer(self, tuned: Tuned, files: list[str]) -> None:
        """Say what was found, and where it was written."""
        if not self._console.is_terminal:
            outcome = tuned.outcome
            told = {"answer": str(tuned), "winner": outcome.winner, "equals": outcome.equals, "ended": outcome.ended}
            _print_line(told | {"seconds": round(outcome.seconds, 3), "files": files})
            return
        self._console.print(str(tuned), markup=False, style="bold")
        self._console.print()
        self._console.print(summary_table(tuned.outcome))
        self._console.print()
        self._console.print(trial_table(tuned.outcome, limit=12))
        self._console.print(f"\nwritten: {escape_unprintable(', '.join(files))}", markup=False)

    def __enter__(self) -> Self:
        """Show it from now on, on a terminal."""
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Take it away."""
        self._live.stop()

    def _picture(self) -> Group:
        seconds = time.monotonic() - self._began
        counts = ", ".join(f"{count} {status}" for status, count in self._counts.items())
        done = sum(self._counts.values())
        left = f", about {format_seconds(self._left * seconds / done)} more" if done and self._left else ""
        lines = [f"{self._phase}{left}", self._detail, counts]
        if self._best is not None:
            lines.append(f"best so far: {_words(self._best)}")
        head = Text("\n".join(line for line in lines if line))
        return Group(head, self._table(), Text(f"{seconds:.0f} s; Ctrl-C ends with the best so far", style="dim"))

    def _table(self) -> Group:
        table = bare_table("", "a call", "")
        for trial in self._latest:
            ran = trial.measurement is not None
            time_words = format_interval(trial.measurement.interval) if trial.measurement else str(trial.status)
            table.add_row(
                escape(trial.name), time_words, "" if ran else escape(shortened(trial.reason, REASON_LETTERS))
            )
        return with_notes(table, [], [])


def _words(trial: Trial) -> str:
    return f"{trial.name}: {format_seconds(trial.measurement.median)} a call" if trial.measurement else trial.name


def _as_json(trial: Trial) -> dict[str, Any]:
    told: dict[str, Any] = {"trial": trial.name, "status": trial.status}
    if trial.measurement is not None:
        estimate, low, high = trial.measurement.interval
        told |= {"seconds": estimate, "low": low, "high": high}
    if trial.reason:
        told["reason"] = trial.reason
    return told


def _print_line(value: dict[str, Any]) -> None:
    print(json.dumps(value), file=sys.stdout, flush=True)
