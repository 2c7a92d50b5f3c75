"""How far a command with many steps is: a line that changes on a terminal, a line for each step elsewhere."""

from typing import Self

from rich.console import Console
from rich.progress import Progress as Bar
from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

from tfperf.errors import escape_unprintable
from tfperf.measure import Progress

__all__ = ["Steps"]


class Steps:
    """Shows the step that is being done; a context manager. On standard error: the answer is for standard output."""

    def __init__(self, title: str) -> None:
        """Begin under a title."""
        self._console = Console(stderr=True, highlight=False)
        self._bar = Bar(
            SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn(),
            console=self._console, transient=True,
        )  # fmt: skip
        self._task = self._bar.add_task(title)
        self._step = title

    def begin(self, step: str) -> None:
        """Show a step."""
        self._step = step = escape_unprintable(step)
        self._bar.update(self._task, description=step)
        if not self._console.is_terminal:
            self._console.print(step, markup=False)

    def show(self, progress: Progress) -> None:
        """Show how far the step's measuring is."""
        left = max(0.0, progress.time_limit - progress.seconds)
        words = f"{self._step}: known to {progress.half_width:.1%}, at most {left:.0f} s more"
        self._bar.update(self._task, description=words)

    def know(self, sentence: str) -> None:
        """Print what is known already, above the step."""
        self._console.print(f"so far: {escape_unprintable(sentence)}", markup=False)

    def note(self, sentence: str) -> None:
        """Print a line above the step."""
        self._console.print(escape_unprintable(sentence), markup=False)

    def __enter__(self) -> Self:
        """Show it from now on, on a terminal."""
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Take it away."""
        self._bar.stop()
