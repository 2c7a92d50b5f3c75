"""Every recipe, one after the other, and one table of what they found."""

import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tfperf.cookbook.catalog import read_header
from tfperf.cookbook.flags import result_file
from tfperf.doctor import Finding, State
from tfperf.doctor.optional import examine_data, examine_horovod, examine_spark
from tfperf.doctor.python import examine_packages
from tfperf.errors import INTERRUPTED, ResultFileError
from tfperf.importing import QUIET_LOG
from tfperf.measure.results import read_result
from tfperf.measure.words import escape_unprintable
from tfperf.processes import STDOUT, ChildProcess
from tfperf.report.tables import bare_table

__all__ = ["lacking", "plain_command", "run_all"]

DEADLINE = 900.0
"""Seconds for one recipe; it means a hang, not a speed."""

GRACE = 5.0
"""Seconds that a recipe has to end by itself, and what it started, after SIGTERM."""

MOST_WORDS = 300
"""Letters of a recipe's last line that the table shows; the log has all."""


class RecipeStatus(StrEnum):
    """What became of a recipe."""

    DONE = "done"
    SKIPPED = "skipped"
    """Something that it needs is not here."""
    FAILED = "failed"
    INTERRUPTED = "interrupted"


COLOURS = {RecipeStatus.DONE: "green", RecipeStatus.FAILED: "red"}


class Run(NamedTuple):
    """One recipe that was begun."""

    name: str
    status: RecipeStatus
    seconds: float
    words: str
    """The first sentence of what it found, or why it found nothing."""


def plain_command(path: Path) -> Sequence[str]:
    """Start a recipe as one process of this Python."""
    return sys.executable, str(path)


def run_all(
    recipes: Mapping[str, Path],
    flags: Sequence[str],
    deadline: float = DEADLINE,
    *,
    command: Callable[[Path], Sequence[str]] = plain_command,
    on_done: Callable[[str, Path], None] | None = None,
) -> int:
    """Run recipes, each in a process of its own that prints into a log beside its result; then print a table.

    Ctrl-C ends the recipe that runs, with all that it started; the table is of those that were begun.

    Args:
        recipes: name -> file.
        flags: for each of them.
        deadline: seconds for each of them.
        command: the words that start a recipe, before its flags.
        on_done: called with the name and the result file of a recipe as soon as it has ended well.

    Returns:
        The exit code: 0, 1 if a recipe failed, 130 after Ctrl-C.
    """
    console = Console(highlight=False)
    runs: list[Run] = []
    name, began = "", time.time()
    try:
        with _progress(console, len(recipes)) as show:
            for name, path in recipes.items():
                show(name)
                began = time.time()
                status, words = _run([*command(path), *flags], path, result_file(name), deadline)
                if status is RecipeStatus.DONE and on_done is not None:
                    on_done(name, result_file(name))
                runs.append(Run(name, status, time.time() - began, words))
    except KeyboardInterrupt:
        runs.append(Run(name, RecipeStatus.INTERRUPTED, time.time() - began, ""))
    console.print(_table(runs))
    console.print(_summary(runs, len(recipes)), markup=False)
    reached = {run.status for run in runs}
    return INTERRUPTED if RecipeStatus.INTERRUPTED in reached else int(RecipeStatus.FAILED in reached)


def _run(command: Sequence[str], path: Path, result: Path, deadline: float) -> tuple[RecipeStatus, str]:
    """Run one recipe; what became of it, and its words for the table."""
    log = result.with_suffix(".log")
    log.parent.mkdir(parents=True, exist_ok=True)
    before = _version(result)
    try:
        code = _exit_code(command, log, deadline)
    except TimeoutError:
        return RecipeStatus.FAILED, f"it did not end within {deadline:g} s; see {log}"
    if code:
        lack = lacking(read_header(path).needs)
        return (RecipeStatus.SKIPPED, lack) if lack else (RecipeStatus.FAILED, f"exit code {code}: {_last_line(log)}")
    if _version(result) == before:  # it ended well and measured nothing: there is nothing to measure here
        return RecipeStatus.SKIPPED, _last_line(log)
    try:
        meaning = read_result(result).meaning
    except ResultFileError as error:
        return RecipeStatus.FAILED, str(error)
    return RecipeStatus.DONE, meaning[0] if meaning else ""


def lacking(needs: str) -> str:
    """The first thing of those a recipe needs that is not here, and what mends it; "" where none is known to lack.

    Looked for are the extras of tfperf, Horovod and data sets, as the headers name them: `pip install 'tfperf[spark]'`,
    `tfperf horovod install`, `tfperf data fashion_mnist`. About a second for Horovod; imports no TensorFlow.

    Args:
        needs: that field of a header. Semicolons divide it; a part that says "where" names what the recipe uses where
            it is installed, and can do without.
    """
    findings = (finding for part in needs.split(";") if "where" not in part.split() for finding in _findings(part))
    lack = next((finding for finding in findings if finding.state is not State.OK), None)
    if lack is None:
        return ""
    return f"{lack.subject}: {lack.found}" + (f"; {lack.mend}" if lack.mend else "")


def _findings(part: str) -> Iterator[Finding]:
    """How it stands with what one part of the needs names."""
    for extra in re.findall(r"tfperf\[(\w+)\]", part):
        yield from examine_spark() if extra == "spark" else _packages_of(extra)
    if "tfperf horovod install" in part:
        yield examine_horovod()[0]
    if names := re.findall(r"tfperf data (\w+)", part):
        yield from examine_data(names)


def _packages_of(extra: str) -> Iterator[Finding]:
    """How it stands with the packages of an extra, and of those that it is made of."""
    from packaging.requirements import Requirement

    for requirement in map(Requirement, metadata.requires("tfperf") or ()):
        if requirement.marker is None or not requirement.marker.evaluate({"extra": extra}):
            continue
        if requirement.name == "tfperf":
            for inner in sorted(requirement.extras):
                yield from _packages_of(inner)
        else:
            yield from examine_packages([f"{requirement.name}{requirement.specifier}"])


def _version(file: Path) -> tuple[int, int] | None:
    """What changes when a file is written anew; None: there is no file."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def _exit_code(command: Sequence[str], log: Path, deadline: float) -> int:
    """Run a command, and end all that descends from it: at its end, and at the end of this process.

    Raises:
        TimeoutError: it did not end in time, and was ended.
    """
    environment = QUIET_LOG | os.environ
    with (
        log.open("wb") as output,
        ChildProcess(command, stdout=output, stderr=STDOUT, environment=environment, grace=GRACE) as process,
    ):
        return process.wait(deadline)


def _last_line(log: Path) -> str:
    """The last words of a recipe, harmless to a terminal."""
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return escape_unprintable(lines[-1])[:MOST_WORDS] if lines else "it said nothing"


@contextmanager
def _progress(console: Console, total: int) -> Iterator[Callable[[str], None]]:
    """Show what begins, and how many are done: a bar on a terminal, elsewhere a line for each."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task, begun = bar.add_task("", total=total), 0

        def show(name: str) -> None:
            nonlocal begun
            bar.update(task, completed=begun, description=escape(name))
            begun += 1
            if not console.is_terminal:
                print(f"[{begun}/{total}] {name}", flush=True)

        yield show


def _table(runs: Sequence[Run]) -> Table:
    """One row for each recipe."""
    table = bare_table("recipe", "", "seconds", "what it found, or why nothing")
    table.columns[0].no_wrap = True
    table.columns[2].justify = "right"
    for run in runs:
        colour = COLOURS.get(run.status, "yellow")
        table.add_row(escape(run.name), f"[{colour}]{run.status}[/{colour}]", f"{run.seconds:.0f}", escape(run.words))
    return table


def _summary(runs: Sequence[Run], total: int) -> str:
    """How many ended in which way, and in how long."""
    counts = {status: sum(run.status is status for run in runs) for status in RecipeStatus}
    words = [f"{count} {status}" for status, count in counts.items() if count]
    if len(runs) < total:
        words.append(f"{total - len(runs)} not begun")
    seconds = sum(run.seconds for run in runs)
    return f"{', '.join(words)}; {seconds:.0f} s. Results, plots and logs: {result_file('all').parent}/"
