"""`tfperf engines`."""

from pathlib import Path
from typing import Annotated

import typer

from tfperf.importing import load_tensorflow

__all__ = ["engines"]


def engines(
    model: Annotated[
        str,
        typer.Argument(help="A net's name, file.py:callable, module:callable, a .keras file or a SavedModel."),
    ],
    batch: Annotated[str, typer.Option(metavar="SIZES", help="Batch sizes, as 1,32.")] = "1",
    threads: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBERS",
            help="Thread counts: 1,2, or default for each engine's own. Left out: 1, and all cores.",
        ),
    ] = None,
    engine: Annotated[str, typer.Option(metavar="NAMES", help="Try only these engines: litert,onnx.")] = "all",
    precision: Annotated[
        str, typer.Option(metavar="NAMES", help="Precisions to try: float32,int8; or all.")
    ] = "float32",
    transform: Annotated[str, typer.Option(metavar="NAMES", help="Changes of the net: fold_batch_norm.")] = "none",
    tolerance: Annotated[
        float | None, typer.Option(min=0, help="The largest error of any output. Left out: that of its precision.")
    ] = None,
    same_top1: Annotated[bool, typer.Option(help="The largest answer of each row must be the same, too.")] = False,
    inputs: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.npz", help="The inputs, by their names; cut or repeated to the batch. Left out: random."
        ),
    ] = None,
    signature: Annotated[
        str | None, typer.Option(help="Which signature of the SavedModel to run. [serving_default]")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the weights of a net by name.")] = 0,
    time_limit: Annotated[
        float, typer.Option(min=0.1, help="Seconds of measuring for each batch size and thread count.")
    ] = 20.0,
    json: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Where the result goes; the plot goes beside it. [results/engines_NAME.json]"
        ),
    ] = None,
) -> None:
    """Run a net in every engine; compare speed, size and outputs."""
    load_tensorflow()
    from rich.console import Console

    from tfperf.cli.options import check_writable, chosen_from, whole_numbers
    from tfperf.cli.steps import Steps
    from tfperf.engines import PRECISIONS, TRANSFORMATIONS, Plan
    from tfperf.engines.catalog import known_engines
    from tfperf.errors import error_message, escape_unprintable
    from tfperf.exports import open_model, read_inputs
    from tfperf.measure.results import write_result
    from tfperf.report.engines import (
        answer,
        cost_table,
        failures_and_doubts,
        speed_table,
        survey_plots,
        survey_result,
    )
    from tfperf.report.plots import save
    from tfperf.system import thread_words, usable_cores
    from tfperf.trials.process import Origin
    from tfperf.trials.side_by_side import ROWS
    from tfperf.trials.survey import survey

    batches = whole_numbers("--batch", batch)
    counts: tuple[int | None, ...] = (None,)
    if threads != "default":
        counts = whole_numbers("--threads", threads or ("1" if usable_cores() == 1 else f"1,{usable_cores()}"))
    changes = () if transform == "none" else chosen_from(TRANSFORMATIONS, "--transform", transform)
    names = chosen_from([known.name for known in known_engines()], "--engine", engine)
    precisions = chosen_from(PRECISIONS, "--precision", precision)
    if not any(one in known.precisions for known in known_engines() if known.name in names for one in precisions):
        raise typer.BadParameter(f"none of {', '.join(names)} has {', '.join(precisions)}")
    servable = open_model(model, signature=signature, seed=seed)
    given = read_inputs(inputs, servable.signature) if inputs is not None else None
    examples = {size: servable.signature.examples(max(ROWS, 2 * size), given, seed) for size in batches}
    target = json or Path("results", f"engines_{servable.name}.json")
    if target.suffix == ".png":
        raise typer.BadParameter(f"expected a .json file for --json, its picture beside it. Received: {target}")
    check_writable("--json", target)
    console = Console(highlight=False)
    surveys = []
    for count in counts:
        plans = {
            size: [
                Plan(
                    engine=known.name,
                    precision=one,
                    threads=count,
                    batch=size if known.fixes_batch(changes) else None,
                    transformations=changes,
                )
                for known in known_engines()
                if known.name in names
                for one in precisions
                if one in known.precisions
            ]
            for size in batches
        }
        try:
            with Steps(thread_words(count)) as steps:
                found = survey(
                    servable,
                    Origin(model, signature, seed),
                    plans,
                    examples,
                    representative=given,
                    tolerance=tolerance,
                    same_top1=same_top1,
                    time_limit=time_limit,
                    on_step=steps.begin,
                    on_progress=steps.show,
                )
        except (OSError, ValueError) as error:
            raise typer.BadParameter(error_message(error)) from error
        for one_batch in found:
            console.print(f"\n{servable.name}, {one_batch.title}", markup=False, style="bold")
            console.print(answer(one_batch), markup=False)
            for part in (speed_table, cost_table, failures_and_doubts):
                console.print()
                console.print(part(one_batch))
        surveys += found
    write_result(target, survey_result(f"engines {servable.name}", surveys))
    save(target.with_suffix(".png"), lambda figure: survey_plots(figure, surveys, servable.name))
    place = escape_unprintable(target)
    console.print(f"\nthe same, with what proves each plan, is in {place}; a picture beside it", markup=False)
    if not any(one_batch.ran for one_batch in surveys):
        raise typer.Exit(1)
