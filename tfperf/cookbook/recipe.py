"""Recipe: the flags a recipe is run with, its experiment, and the record of what it found."""

import contextlib
import gc
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from tfperf.cookbook.catalog import read_header
from tfperf.cookbook.flags import Flag, parse_flags
from tfperf.data import Dataset, load
from tfperf.errors import BAD_INPUT, INTERRUPTED, TfperfError, escape_unprintable, in_one_line
from tfperf.measure import (
    Agreement,
    Benchmark,
    Comparison,
    Environment,
    Measurement,
    PeakMemory,
    Progress,
    check_agreement,
    compare,
)
from tfperf.measure.comparing import PATIENCE
from tfperf.measure.results import Fact, Result, write_result
from tfperf.report import plots, tables
from tfperf.system import restore_interrupts

if TYPE_CHECKING:
    from tfperf.cookbook.opened_model import OpenedModel

__all__ = ["Flag", "Recipe"]

RANK_VARIABLES = ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
"""Where horovodrun, Open MPI and other MPIs tell a process its rank."""


QUICK_IMAGES = (4096, 1024)
"""Train and test images of a data set that a run with --quick takes, unless its recipe says otherwise."""


class Recipe:
    """The flags of one run of a recipe, its experiment, and what it found so far.

    When a launcher has started several processes together, only the first prints and writes. A recipe ends with::

        if __name__ == "__main__":
            Recipe(__file__, batch=1).run(main)

    and `main(recipe)` is the experiment.
    """

    def __init__(
        self, file: str, *, batch: int, model: str | None = None, arguments: list[str] | None = None, **own: Flag
    ) -> None:
        """Read the recipe's header and this process's flags.

        Args:
            file: the recipe's `__file__`.
            batch: default of --batch.
            model: default of --model, which `open_model` opens; None: the recipe has no such flag.
            arguments: the flags; None: those this process was started with.
            **own: flags of this recipe alone, `epochs=Flag(2, "epochs to train")` for `--epochs`.

        Raises:
            SystemExit: a flag is wrong (2, after one line), or --help was asked for (0).
        """
        path = Path(file)
        self.name = path.stem
        self.header = read_header(path)
        self.flags = parse_flags(self.name, self.header, batch=batch, model=model, own=own, arguments=arguments)
        self._own_model = model or ""
        self._is_readers_net = False
        self._is_first = _rank() == 0
        self.console = Console(highlight=False, quiet=not self._is_first)
        self._dataset: str | None = None
        self._measurements: list[Measurement] = []
        self._comparisons: list[Comparison] = []
        self._agreements: list[Agreement] = []
        self._facts: dict[str, Fact] = {}
        self._findings: list[str] = []
        self._plots: list[Path] = []

    def run(self, experiment: Callable[["Recipe"], None]) -> None:
        """Run the experiment, then write the result file; ends the process with an error's exit code.

        An error that tfperf foresees is one line and 2, and so is any on the reader's net; Ctrl-C is one line and 130,
        and leaves no result.
        """
        restore_interrupts()
        gc.freeze()  # what libraries made stays; else each collection, and the end, would go through all of it
        self.console.rule(f"[bold]{escape(self.header.title)}")
        logging.getLogger("tensorflow").setLevel(logging.ERROR)  # it warns of retracing, which recipes do on purpose
        self.console.print(f"Source: {self.header.source}\nClaim: {self.header.claim}\n", markup=False)
        try:
            experiment(self)
            self._write()
        except TfperfError as error:
            print(f"{self.name}: {escape_unprintable(error)}", file=sys.stderr)
            sys.exit(BAD_INPUT)
        except KeyboardInterrupt:
            print(f"{self.name}: interrupted; nothing was written", file=sys.stderr)
            sys.exit(INTERRUPTED)
        except Exception as error:
            if not self._is_readers_net:
                raise
            words = f"this experiment cannot be made with {self.flags.model}: {in_one_line(error)}"
            print(f"{self.name}: {escape_unprintable(words)}", file=sys.stderr)
            sys.exit(BAD_INPUT)

    def open_model(self, batch: int | None = None) -> "OpenedModel":
        """Open the net of --model, with inputs for it: the recipe's own, or the reader's.

        Args:
            batch: examples in the inputs; None: those of --batch.

        Raises:
            TfperfError: there is no such model, it is no Keras model, or its outputs are not finite.
        """
        from tfperf.cookbook.opened_model import open_for_recipe  # loads TensorFlow

        flags, size = self.flags, self.flags.batch if batch is None else batch
        opened = open_for_recipe(
            flags.model,
            flags.inputs,
            size,
            flags.seed,
            own=self._own_model,
            say=lambda sentence: self.console.print(escape_unprintable(sentence), markup=False),
        )
        self._is_readers_net = opened.is_yours
        if opened.is_yours:
            self.fact("model", flags.model)
            inputs = "; ".join(map(str, opened.servable.signature.inputs))
            self.console.print(escape_unprintable(f"Net: {opened.words}. Inputs: {inputs}"), markup=False)
        return opened

    def load_data(self, name: str = "fashion_mnist", quick: tuple[int, int] = QUICK_IMAGES) -> Dataset:
        """Load a data set of real images and name it in the result; with --quick its first images only.

        Args:
            name: its name.
            quick: train and test images to take with --quick.

        Raises:
            TfperfError: it is not on this machine, or --batch is larger than it.
        """
        data = load(name)
        if self.flags.quick:
            data = data.take(min(quick[0], len(data.train_images)), min(quick[1], len(data.test_images)))
        if self.flags.batch > len(data.train_images):
            raise TfperfError(
                f"expected --batch to be at most {len(data.train_images)}, the number of training images. "
                f"Received: --batch {self.flags.batch}"
            )
        self.uses(data)
        return data

    def uses(self, data: Dataset) -> None:
        """Name the data set that is really used, and where it was found; `load_data` does so by itself."""
        self._dataset = escape_unprintable(data.describe())
        self.console.print(f"Data: {self._dataset}", markup=False)

    def agrees(self, name: str, outputs: Any, reference: Any, tolerance: float = 1e-5) -> Agreement:
        """Check that outputs are those of the reference, print it and write it down.

        Args:
            name: what gave the outputs.
            outputs, reference: arrays or tensors, or nests of them, of equal structure and shapes.
            tolerance: largest absolute error as a share of the largest reference output.

        Raises:
            TfperfError: they differ by more: no speed is shown for wrong outputs.
        """
        agreement = check_agreement(name, outputs, reference, tolerance)
        self.add(agreement)
        return agreement

    def compare(
        self,
        candidates: Mapping[str, Callable[..., Any]],
        *args: Any,
        tolerance: float | Mapping[str, float] | None = 1e-5,
        reference: Any = None,
        what: str = "side by side",
        **options: Any,
    ) -> Comparison:
        """Check that all candidates give the same outputs, then measure them in turns, print and write down both.

        Args:
            candidates: name -> function; the first is the baseline.
            *args: what each of them is called with.
            tolerance: as `agrees` takes it, for all or by name; None: the outputs were checked before.
            reference: the right outputs; None: those of the first candidate.
            what: what is measured, for the progress bar.
            **options: of `tfperf.compare`.

        Raises:
            TfperfError: the outputs of a candidate differ.
        """
        if tolerance is not None:
            names = list(candidates)
            if reference is None:
                reference = candidates[names.pop(0)](*args)
            for name in names:
                largest = tolerance[name] if isinstance(tolerance, Mapping) else tolerance
                self.agrees(name, candidates[name](*args), reference, largest)
        settings = {name: getattr(self.flags, name) for name in ("time_limit", "patient", "seed")} | options
        most = settings["time_limit"] * (PATIENCE if settings["patient"] else 1)
        with self.progress(what, most) as show:
            comparison = compare(candidates, args, on_progress=show, **settings)
        self.add(comparison)
        return comparison

    def measure(self, name: str, function: Callable[..., Any], *args: Any, **options: Any) -> Measurement:
        """Measure one function, print and write down its time.

        Args:
            name: what is measured.
            function: called with `args`.
            **options: of `tfperf.Benchmark`; the time limit is a quarter of a comparison's unless one is given.
        """
        benchmark = Benchmark(name, **{"time_limit": self.flags.time_limit / 4} | options)
        measurement = benchmark.measure(function, *args)
        self.add(measurement)
        return measurement

    def peaks(self, candidates: Mapping[str, Callable[..., Any]], *args: Any) -> dict[str, int]:
        """Measure how many bytes more than the first candidate each one takes at its peak, and write that down.

        Args:
            candidates: name -> function, already traced, the smallest peak first: what the process keeps of one peak
                hides a smaller one after it. Each is called once.
            *args: what each of them is called with.
        """
        memory, peaks = PeakMemory(), {}
        for name, function in candidates.items():
            function(*args)
            peak = memory.read()
            peaks[name] = peak.resident if peak.device is None else peak.device
        first = next(iter(peaks))
        above = {name: size - peaks[first] for name, size in peaks.items()}
        for name, size in above.items():
            self.fact(f"bytes of peak memory above {first}: {name}", size)
        return above

    @contextlib.contextmanager
    def progress(self, what: str, limit: float) -> Iterator[Callable[[Progress], None]]:
        """Show how far a measurement of at most `limit` seconds has come; gives what `on_progress` wants."""
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        if not self.console.is_terminal:
            self.console.print(f"{what}: at most {limit:g} s", markup=False)
        with Bar(*columns, console=self.console, transient=True) as bar:
            task = bar.add_task(escape(what), total=1.0)

            def show(progress: Progress) -> None:
                done = min(1.0, progress.seconds / progress.time_limit)
                bar.update(task, completed=done, description=escape(f"{what}: known to {progress.half_width:.1%}"))

            yield show

    def add(self, found: Measurement | Comparison | Agreement) -> None:
        """Print and write down what was measured or checked elsewhere: by ranks together, or in another process.

        Raises:
            TfperfError: a check of the outputs that failed: no speed is shown for wrong outputs.
        """
        if isinstance(found, Agreement):
            if not self._agreements:
                self.console.print("\nAre the outputs the same?")
            self._agreements.append(found)
            self.console.print(f"  {found}", markup=False)
            if not found.passed:
                raise TfperfError(f"the outputs differ, so no speed is shown: {found}")
        elif isinstance(found, Comparison):
            self._comparisons.append(found)
            self.console.print(tables.comparison_table(found))
        else:
            self._measurements.append(found)
            self.console.print(tables.measurement_table([found]))

    def table(self, headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Print a table of figures; what of it is to last is written down with `fact`."""
        table = tables.bare_table(*headers)
        for row in rows:
            table.add_row(*(escape(escape_unprintable(cell)) for cell in row))
        self.console.print(table)

    def fact(self, name: str, value: Fact) -> None:
        """Write down a figure that is no duration, under a name that says its unit; it is not printed."""
        self._facts[name] = escape_unprintable(value) if isinstance(value, str) else value

    def finds(self, sentence: str) -> None:
        """Say what the figures mean, and write it down."""
        sentence = escape_unprintable(sentence)
        self._findings.append(sentence)
        self.console.print(sentence, markup=False)

    def corrects(self, sentence: str) -> None:
        """Say where the source is wrong or dated, and what is true; it stands among the findings."""
        self.finds(f"{tables.CORRECTION}{sentence}")

    def plot(self, draw: Callable[..., None], *args: Any, suffix: str = "") -> None:
        """Draw a figure and save it beside the result file.

        Args:
            draw: is given a matplotlib figure and `args`.
            suffix: the end of the file's name.
        """
        if not self._is_first:
            return
        kind = "svg" if self.flags.svg else "png"
        path: Path = self.flags.json.with_name(f"{self.flags.json.stem}{suffix}.{kind}")
        plots.save(path, lambda figure: draw(figure, *args))
        self._plots.append(path)

    def _write(self) -> None:
        if not self._is_first:
            return
        result = Result(
            name=self.name,
            dataset=self._dataset,
            environment=Environment.here(),
            measurements=tuple(self._measurements),
            comparisons=tuple(self._comparisons),
            agreements=tuple(self._agreements),
            facts=self._facts,
            meaning=tuple(self._findings),
        )
        write_result(self.flags.json, result)
        paths = ", ".join(str(path) for path in (self.flags.json, *self._plots))
        self.console.print(f"\nWritten: {escape_unprintable(paths)}", markup=False)


def _rank() -> int:
    """Which of several processes started together this is, by what their launcher says; 0 where there is none."""
    return int(next((os.environ[name] for name in RANK_VARIABLES if name in os.environ), 0))
