"""Recipe: the flags a recipe is run with, and the sheet on which it writes down what it found."""

import contextlib
import gc
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from tfperf.cookbook.flags import Flag, parse_flags
from tfperf.cookbook.header import read_header
from tfperf.errors import BAD_INPUT, INTERRUPTED, TfperfError
from tfperf.measure import Agreement, Comparison, Environment, Measurement, Progress
from tfperf.measure.results import Fact, Result, write_result
from tfperf.report import plots, tables

__all__ = ["Flag", "Recipe"]

RANK_VARIABLES = ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
"""Where horovodrun, Open MPI and other MPIs tell a process its rank."""


class Recipe:
    """The flags of one run of a recipe, and what it found so far.

    Of several processes that a launcher started together, only the first prints and writes. A recipe ends with::

        if __name__ == "__main__":
            Recipe(__file__, batch=1).run(main)

    and `main(recipe)` is the lesson.
    """

    def __init__(self, file: str, *, batch: int, arguments: list[str] | None = None, **own: Flag) -> None:
        """Read the recipe's header and this process's flags.

        Args:
            file: the recipe's `__file__`.
            batch: default of --batch.
            arguments: the flags; None: those this process was started with.
            **own: flags of this recipe alone, `epochs=Flag(2, "epochs to train")` for `--epochs`.

        Raises:
            SystemExit: a flag is wrong (2, after one line), or --help was asked for (0).
        """
        path = Path(file)
        self.name = path.stem
        self.header = read_header(path)
        self.flags = parse_flags(self.name, self.header, batch=batch, own=own, arguments=arguments)
        self._is_first = _rank() == 0
        self.console = Console(highlight=False, quiet=not self._is_first)
        self._dataset: str | None = None
        self._found: dict[type, list[Any]] = {Measurement: [], Comparison: [], Agreement: []}
        self._facts: dict[str, Fact] = {}
        self._meaning: list[str] = []
        self._plots: list[Path] = []

    def run(self, lesson: Callable[["Recipe"], None]) -> None:
        """Give the lesson, then write the result file; ends the process with an error's exit code.

        An error that tfperf foresees is one line and 2; Ctrl-C is one line and 130, and leaves no result.
        """
        gc.freeze()  # what libraries made stays; else each collection, and the end, would go through all of it
        self.console.rule(f"[bold]{self.header.title}")
        self.console.print(f"Source: {self.header.source}\n", markup=False)
        try:
            lesson(self)
            self._write()
        except TfperfError as error:
            print(f"{self.name}: {error}", file=sys.stderr)
            sys.exit(BAD_INPUT)
        except KeyboardInterrupt:
            print(f"{self.name}: interrupted; nothing was written", file=sys.stderr)
            sys.exit(INTERRUPTED)

    @contextlib.contextmanager
    def progress(self, what: str) -> Iterator[Callable[[Progress], None]]:
        """Show how far a measurement has come; gives what `on_progress` wants."""
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        if not self.console.is_terminal:
            self.console.print(f"{what}: at most {self.flags.time_limit:g} s", markup=False)
        with Bar(*columns, console=self.console, transient=True) as bar:
            task = bar.add_task(what, total=1.0)

            def show(progress: Progress) -> None:
                done = min(1.0, progress.seconds / progress.time_limit)
                bar.update(task, completed=done, description=f"{what}: known to {progress.half_width:.1%}")

            yield show

    def add(self, found: Measurement | Comparison | Agreement) -> None:
        """Write down a measurement, a comparison or a check of the answers, and print it as a table.

        Raises:
            TfperfError: a check of the answers that failed: no speed is shown for wrong answers.
        """
        self._found[type(found)].append(found)
        if isinstance(found, Agreement):
            self.console.print(f"  {found}", markup=False)
            if not found.passed:
                raise TfperfError(f"the answers differ, so no speed is shown: {found}")
        elif isinstance(found, Comparison):
            self.console.print(tables.comparison_table(found))
        else:
            self.console.print(tables.measurement_table([found]))

    def uses(self, dataset: str) -> None:
        """Name the data set that is really used, and where it was found."""
        self._dataset = dataset
        self.console.print(f"Data: {dataset}", markup=False)

    def fact(self, name: str, value: Fact) -> None:
        """Write down a figure that is no duration, under a name that says its unit."""
        self._facts[name] = value

    def means(self, sentence: str) -> None:
        """Say what the figures mean."""
        self._meaning.append(sentence)
        self.console.print(sentence, markup=False)

    def plot(self, draw: Callable[[Any], None], suffix: str = "") -> None:
        """Draw a figure and save it beside the result file, with `suffix` at the end of its name.

        Args:
            draw: is given a matplotlib figure.
        """
        if not self._is_first:
            return
        path: Path = self.flags.json.with_name(f"{self.flags.json.stem}{suffix}.png")
        plots.save(path, draw)
        self._plots.append(path)

    def _write(self) -> None:
        if not self._is_first:
            return
        result = Result(
            name=self.name,
            dataset=self._dataset,
            environment=Environment.here(),
            measurements=tuple(self._found[Measurement]),
            comparisons=tuple(self._found[Comparison]),
            agreements=tuple(self._found[Agreement]),
            facts=self._facts,
            meaning=tuple(self._meaning),
        )
        write_result(self.flags.json, result)
        paths = ", ".join(str(path) for path in (self.flags.json, *self._plots))
        self.console.print(f"\nWritten: {paths}", markup=False)


def _rank() -> int:
    """Which of several processes started together this is, by what their launcher says; 0 where there is none."""
    return int(next((os.environ[name] for name in RANK_VARIABLES if name in os.environ), 0))
