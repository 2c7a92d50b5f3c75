"""`tfperf report`."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["report"]


def report(
    result: Annotated[Path, typer.Argument(help="The result file of tfperf tune.", metavar="RESULT.json")],
    output: Annotated[
        Path | None,
        typer.Option(
            help="Where to write it: .html, .md or .csv; of a training .html.",
            show_default="RESULT.html",
            metavar="FILE",
        ),
    ] = None,
) -> None:
    """Make a report of a tuning: HTML in one file, Markdown or CSV."""
    from tfperf.errors import escape_unprintable
    from tfperf.measure.results import format_of, read_document
    from tfperf.search.training.outcome import TrainingOutcome

    target = output or result.with_suffix(".html")
    write: Callable[[], None]
    if format_of(result) == TrainingOutcome.model_fields["format"].default:
        from tfperf.report.training import check_training_page_path, write_training_page

        trained = read_document(result, TrainingOutcome)
        check_training_page_path(target)
        write = functools.partial(write_training_page, target, trained)
    else:
        from tfperf.report.page import check_report_path, write_report
        from tfperf.search.outcome import Outcome

        outcome = read_document(result, Outcome)
        check_report_path(target)
        write = functools.partial(write_report, target, outcome)
    if target.exists() and target.samefile(result):
        raise typer.BadParameter(f"the report would replace the result file {result}; name another --output")
    write()
    print(f"report: {escape_unprintable(target)}")
