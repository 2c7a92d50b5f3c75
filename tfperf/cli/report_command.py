"""`tfperf report`."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["report"]


def report(
    result: Annotated[Path, typer.Argument(help="The result file of tfperf tune.", metavar="RESULT.json")],
    output: Annotated[
        Path | None,
        typer.Option(help="The report to write: .html, .md or .csv.", show_default="RESULT.html", metavar="FILE"),
    ] = None,
) -> None:
    """Make a report of a tuning: HTML in one file, Markdown or CSV."""
    from tfperf.errors import escape_unprintable
    from tfperf.measure.results import read_document
    from tfperf.report.page import check_report_path, write_report
    from tfperf.search.outcome import Outcome

    outcome = read_document(result, Outcome)
    target = output or result.with_suffix(".html")
    check_report_path(target)
    if target.exists() and target.samefile(result):
        raise typer.BadParameter(f"the report would replace the result file {result}; name another --output")
    write_report(target, outcome)
    print(f"report: {escape_unprintable(target)}")
