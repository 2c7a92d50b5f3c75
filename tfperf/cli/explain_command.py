"""`tfperf explain`."""

from pathlib import Path
from typing import Annotated

import typer

from tfperf.importing import load_tensorflow

__all__ = ["explain"]


def explain(
    model: Annotated[
        str,
        typer.Argument(help="A net's name, file.py:callable, module:callable, a .keras file or a SavedModel."),
    ],
    batch: Annotated[
        str, typer.Option(metavar="SIZES", help="Batch sizes: 1 or 1,64, or 1:64 for 1, 2, 4, ... 64.")
    ] = "1",
    train: Annotated[
        bool, typer.Option("--train", help="Explain a training step instead of the forward pass.")
    ] = False,
    data: Annotated[
        str | None,
        typer.Option(
            help="With --train, what it is trained on, as for tfperf tune. Left out: random inputs in memory."
        ),
    ] = None,
    try_techniques: Annotated[
        bool, typer.Option("--try", help="Measure what should help, and show it beside the prediction.")
    ] = False,
    threads: Annotated[int | None, typer.Option(min=1, help="Left out: all cores.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Measure for less time, and less exactly.")] = False,
    time_limit: Annotated[
        float,
        typer.Option(min=5, help="Seconds for all of it, once the machine is known; what does not fit is left out."),
    ] = 120.0,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure the machine again as well.")] = False,
    signature: Annotated[
        str | None, typer.Option(help="Which signature of the SavedModel to run. [serving_default]")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the weights of a net by name.")] = 0,
    json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where the results go. [results/explain_NAME.json]")
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="The roofline: .svg or .png.")] = None,
    report: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the page there: .html.")] = None,
) -> None:
    """Say what a model waits for, and what would help.

    A model waits for compute, for memory bandwidth, or for overhead: what is neither. Ctrl-C ends the measuring
    and shows what is known so far.
    """
    from tfperf.cli.options import batch_sizes, check_writable
    from tfperf.errors import error_message, escape_unprintable

    sizes = batch_sizes("--batch", batch)
    if data is not None and not train:
        raise typer.BadParameter("expected --train with --data")
    check_writable("--json", json or Path("results", "explain.json"))
    load_tensorflow()
    from rich.console import Console
    from rich.markup import escape

    from tfperf.cli.steps import Steps
    from tfperf.explaining.explaining import TIME_LIMIT
    from tfperf.explaining.explaining import explain as look
    from tfperf.measure.results import write_result
    from tfperf.report.explanation import advice_lines, check_page_path, doubt_lines, layer_table, write_page
    from tfperf.report.plots import check_plot_path
    from tfperf.report.roofline import points_of, write_roofline

    if plot is not None:
        check_plot_path(plot)
    if report is not None:
        check_page_path(report)
    with Steps("opening the model") as steps:
        try:
            explanation = look(
                model,
                sizes,
                training=train,
                data=data,
                try_techniques=try_techniques,
                threads=threads,
                signature=signature,
                seed=seed,
                quick=quick,
                fresh=fresh,
                time_limit=TIME_LIMIT / 5 if quick else TIME_LIMIT,
                limit=time_limit,
                watcher=steps,
            )
        except (OSError, ValueError) as error:
            raise typer.BadParameter(error_message(error)) from error
    console = Console(highlight=False)
    for explained in explanation.batches:
        console.rule(escape(f"{explanation.model}, batch {explained.batch}"))
        for line in explained.verdicts:
            console.print(f"- {line}", markup=False)
        console.print()
        console.print(layer_table(explained))
        console.print()
        for line in advice_lines(explanation, explained):
            console.print(f"- {line}", markup=False)
    console.print(doubt_lines(explanation))
    target = json or Path("results", f"explain_{explanation.model}.json")
    write_result(target, explanation)
    if plot is not None:
        last = explanation.batches[-1]
        title = f"{explanation.model}, batch {last.batch}, {explanation.threads} threads"
        write_roofline(plot, points_of(last), explanation.roofs, title)
    if report is not None:
        write_page(report, explanation)
    written = ", ".join(str(path) for path in (target, plot, report) if path is not None)
    console.print(f"written: {escape_unprintable(written)}", markup=False)
