"""`tfperf doctor`."""

import contextlib
import io
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tfperf.doctor import Finding

__all__ = ["doctor"]

NOT_FIT = 1
"""Exit code where something that tfperf needs is missing or unfit."""


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False) -> None:
    """Check this machine, and say how to mend what is missing.

    Python, packages, TensorFlow, GPUs, CPU, memory and disk, engines, Horovod, Spark, data. Exits 0 if what
    tfperf needs is there and works, 1 if not; what is optional is a note. Downloads and changes nothing.
    """
    from tfperf.doctor import examine, is_fit
    from tfperf.doctor.findings import findings_json

    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that TensorFlow's process ends too
    with _telling() as tell:
        findings = examine(tell)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without the glyphs still gets the words
    if as_json:
        print(findings_json(findings))
    else:
        _show(findings)
    raise typer.Exit(0 if is_fit(findings) else NOT_FIT)


@contextlib.contextmanager
def _telling() -> Iterator[Callable[[str], None]]:
    """A function that shows on a terminal what is being looked at, and is silent elsewhere."""
    try:
        from rich.console import Console
    except ImportError:  # one of the things that the doctor is there to find
        yield lambda _: None
        return
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status("looking") as status:
        yield lambda subject: status.update(f"looking at {subject}")


def _show(findings: "Sequence[Finding]") -> None:
    """Print a table on a terminal, plain lines elsewhere; then one line that sums up."""
    from tfperf.doctor.findings import findings_lines, findings_table, summary

    try:
        from rich.console import Console
    except ImportError:
        print(findings_lines(findings))
    else:
        console = Console(highlight=False)
        if console.is_terminal:
            console.print(findings_table(findings))
        else:
            print(findings_lines(findings))
    print(summary(findings))
