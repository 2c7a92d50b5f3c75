"""How far a build is: a bar on a terminal, a line for each tenth elsewhere."""

import contextlib
import time
from collections.abc import Callable, Iterator

from tfperf.parallel.horovod_build.build_log import step_of

__all__ = ["showing_progress"]


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
