"""The output of pip and make: followed line by line, how far they are, and in one line why they failed."""

import contextlib
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from tfperf.processes import PIPE, STDOUT, ChildProcess

__all__ = ["first_error", "follow", "showing_progress", "step_of"]

_STEP = re.compile(r"^\s*\[\s*(\d+)%\] (?:Building|Linking) .*?([^/\s]+)$")

_TELLING = (
    re.compile(r"No space left on device"),
    re.compile(r"Killed signal terminated program|internal compiler error"),
    re.compile(r"DO NOT MATCH THE HASHES"),
    re.compile(r"^\s*\S+:\d+(?::\d+)?: (?:fatal )?error: |\S+\(\d+\): error: "),
    re.compile(r"^\s*\S*(?:g\+\+|gcc|clang\S*|nvcc|ld)\s*(?:: fatal error|: error|fatal\s+:)"),
    re.compile(r"undefined reference to|cannot find -l"),
    re.compile(r"^\s*CMake Error"),
    re.compile(r"^\s*(?:ERROR|error): "),
)
"""Most telling first: of two errors in a log, the one whose kind stands higher is the cause."""

_LONGEST = 240

GRACE_S = 10.0
"""Seconds that a command has to end by itself after SIGINT, before it is killed."""


def follow(
    command: Sequence[str],
    environment: Mapping[str, str],
    on_line: Callable[[str], object],
    grace: float = GRACE_S,
) -> int:
    """Run a command to its end and return its exit code.

    If anything interrupts the waiting, Ctrl-C among it, the command is interrupted too, on which pip restores what it
    was about to replace; what is left of it is killed.

    Args:
        command: a program and its arguments.
        environment: all variables.
        on_line: gets each line that it and its children write.
        grace: seconds that it has to end by itself once it is interrupted.
    """
    with ChildProcess(command, stdout=PIPE, stderr=STDOUT, environment=environment) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                on_line(line.decode(errors="replace").rstrip())
            return process.wait()
        except BaseException:
            process.interrupt()
            with contextlib.suppress(TimeoutError):
                process.wait(grace)
            raise


def step_of(line: str) -> tuple[int, str] | None:
    """(percent done, file being made) if the line is make's report of a step, else None."""
    found = _STEP.match(line)
    if found is None:
        return None
    name = re.sub(r"\.(?:o|a)$", "", found[2])
    return int(found[1]), name


def first_error(lines: Iterable[str]) -> str:
    """The line of a failed build's log that says why, shortened to one that can be read."""
    lines = [line.strip() for line in lines if line.strip()]
    for telling in _TELLING:
        for number, line in enumerate(lines):
            if telling.search(line):
                return _readable(line if not line.startswith("CMake Error") else " ".join(lines[number : number + 2]))
    return _readable(lines[-1]) if lines else "it said nothing"


def _readable(line: str) -> str:
    line = re.sub(r"/\S*/(?=[^/\s]+:\d)", "", line)  # the temporary folder before a source file's name
    if "Killed signal terminated program" in line:
        line += " (out of memory? --jobs 1 needs the least)"
    if "DO NOT MATCH THE HASHES" in line:
        line = "the source distribution that pip found is not the known one: its SHA-256 differs"
    return line if len(line) <= _LONGEST else line[:_LONGEST] + "..."


@contextlib.contextmanager
def showing_progress(terminal: bool, clock: Callable[[], float] = time.monotonic) -> Iterator[Callable[[str], None]]:
    """Give the function that takes the lines of the build's output.

    Args:
        terminal: whether standard output is one, where a bar can be drawn.
        clock: seconds.
    """
    if terminal:
        with _bar() as on_line:
            yield on_line
    else:
        yield _tenths(clock)


@contextlib.contextmanager
def _bar() -> Iterator[Callable[[str], None]]:
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, transient=True) as progress:
        task = progress.add_task("preparing", total=100)

        def on_line(line: str) -> None:
            step = step_of(line)
            if step is not None:
                progress.update(task, completed=step[0], description=step[1])

        yield on_line


def _tenths(clock: Callable[[], float]) -> Callable[[str], None]:
    start, told = clock(), 0

    def on_line(line: str) -> None:
        nonlocal told
        step = step_of(line)
        if step is not None and step[0] // 10 > told:
            told = step[0] // 10
            print(f"  {told * 10:3d} %  {clock() - start:4.0f} s  {step[1]}", flush=True)

    return on_line
