"""`tfperf compare`."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["compare"]

EXIT_CODES = {"no regression": 0, "regression": 1, "too noisy to say": 3}
"""Verdict -> exit code; 2 is bad input, here as everywhere."""

MOST_SLOWDOWN = 10.0
"""The largest threshold; a larger one is taken for a slip of the pen."""


def compare(
    before: Annotated[Path, typer.Argument(help="The result file before the change.")],
    after: Annotated[Path, typer.Argument(help="The result file after the change.")],
    threshold: Annotated[str, typer.Option(help="The slowdown that still counts as no regression: 2% or 0.02.")] = "2%",
) -> None:
    """Compare two result files: has anything become slower?

    Exits with 0 for no regression, 1 for a regression, 2 for bad input, and 3 when it is too noisy to say.
    """
    from rich.console import Console

    from tfperf.cli.options import share
    from tfperf.errors import escape_unprintable
    from tfperf.measure.regression import changes_between, overall
    from tfperf.measure.results import read_result
    from tfperf.report.tables import change_table

    allowed = share("--threshold", threshold, most=MOST_SLOWDOWN)
    old, new = read_result(before), read_result(after)
    changes = changes_between(old, new, allowed)
    console = Console(highlight=False)
    console.print(change_table(changes))
    for difference in old.environment.differences(new.environment):
        console.print(f"doubt: the environments differ in {difference}", markup=False)
    for name in sorted(old.runs.keys() ^ new.runs.keys()):
        there = escape_unprintable(before if name in old.runs else after)
        console.print(f"not compared: '{name}' is only in {there}", markup=False)
    if any(len(runs) < 3 for result in (old, new) for runs in result.runs.values()):
        console.print("doubt: fewer than three runs on a side, so what differs from process to process is assumed")
    verdict = overall(changes)
    console.print(f"{verdict} (slowdown allowed: {allowed:.3g})", markup=False)
    raise typer.Exit(EXIT_CODES[verdict])
