"""`tfperf tune`."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

import typer

from tfperf.cli.tune_training import tune_training, write_each
from tfperf.importing import load_tensorflow
from tfperf.search.options import OPTIONS

__all__ = ["tune"]

FOR_TRAINING = {
    "model", "train", "data", "batch", "threads", "precision", "memory_limit", "trial_time", "time_limit",
    "json", "report", "script", "fresh",
}  # fmt: skip
"""The options that --train takes."""


def tune(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Argument(help="A net's name, file.py:callable, module:callable, a .keras file or a SavedModel."),
    ],
    objective: Annotated[
        str,
        typer.Option(metavar="NAMES", help=OPTIONS["objectives"].help("size,latency")),
    ] = "latency",
    batch: Annotated[
        str | None,
        typer.Option(
            metavar="SIZES",
            help=OPTIONS["batches"].help("1,8,32, or 1:256 for 1, 2, 4, ... 256. [1; with --train 32, or the data's]"),
        ),
    ] = None,
    threads: Annotated[
        str | None,
        typer.Option(metavar="NUMBERS", help=OPTIONS["threads"].help("1,2. Left out: 1, 2, 4, ... all cores")),
    ] = None,
    tolerance: Annotated[float, typer.Option(min=0, help=OPTIONS["tolerance"].help())] = 1e-4,
    same_top1: Annotated[bool, typer.Option("--same-top1", help=OPTIONS["same_top1"].help())] = False,
    inputs: Annotated[
        Path | None, typer.Option(metavar="FILE.npz", help="The inputs, by their names. Left out: random ones.")
    ] = None,
    labels: Annotated[
        Path | None, typer.Option(metavar="FILE.npz", help="The labels of the inputs, by the names of the outputs.")
    ] = None,
    accuracy_drop: Annotated[
        str | None,
        typer.Option(metavar="SHARE", help=OPTIONS["accuracy_drop"].help("0.5%; with --labels")),
    ] = None,
    latency_limit: Annotated[
        str | None, typer.Option(metavar="TIME", help=OPTIONS["latency_limit"].help("5ms"))
    ] = None,
    memory_limit: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help=OPTIONS["memory_limit"].help("2GiB. Left out: 80 % of all")),
    ] = None,
    engine: Annotated[str, typer.Option(metavar="NAMES", help=OPTIONS["engines"].help("litert,onnx"))] = "all",
    precision: Annotated[
        str, typer.Option(metavar="NAMES", help=OPTIONS["precisions"].help("float32,bfloat16"))
    ] = "all",
    transform: Annotated[
        str, typer.Option(metavar="NAMES", help=OPTIONS["transformations"].help("fold_batch_norm; or none"))
    ] = "all",
    trial_time: Annotated[float, typer.Option(min=1, help=OPTIONS["trial_seconds"].help())] = 300.0,
    time_limit: Annotated[float | None, typer.Option(min=1, help=OPTIONS["time_limit"].help())] = None,
    signature: Annotated[
        str | None, typer.Option(help="Which signature of the SavedModel to run. [serving_default]")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of random inputs, and of the weights of a net by name.")] = 0,
    json: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where the results go, for tfperf report. [results/tune_NAME.json]"),
    ] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a report there: .html, .md or .csv; with --train .html.")
    ] = None,
    export: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="A new folder, for the files that run the winner.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start anew, even if an earlier search was stopped.")] = False,
    train: Annotated[
        bool, typer.Option("--train", help="Find the fastest way to train it instead. With --data.")
    ] = False,
    data: Annotated[
        str | None,
        typer.Option(help="What to train on: a data set's name, file.py:callable, module:callable or an .npz file."),
    ] = None,
    script: Annotated[
        Path | None,
        typer.Option(metavar="FILE.py", help="A script that trains as was found. [results/train_NAME.py]"),
    ] = None,
) -> None:
    """Find the fastest correct way to run a model on this machine.

    With --train it is the fastest way to train it that learns the same. That takes --data, --batch, --threads,
    --precision, --memory-limit, --trial-time, --time-limit, --json, --report, --script and --fresh.
    """
    if train:
        _refuse(context, set(context.params) - FOR_TRAINING, "--train does not take")
        tune_training(
            model,
            data,
            batch=batch,
            threads=threads,
            precision=precision,
            memory_limit=memory_limit,
            trial_time=trial_time,
            time_limit=time_limit,
            json=json,
            report=report,
            script=script,
            fresh=fresh,
        )
        return
    _refuse(context, {"data", "script"}, "expected --train with")
    load_tensorflow()
    from tfperf.cli.options import batch_sizes, byte_count, check_writable, chosen_from, duration, share, whole_numbers
    from tfperf.cli.tune_display import Display
    from tfperf.engines import PRECISIONS, TRANSFORMATIONS
    from tfperf.engines.catalog import known_engines
    from tfperf.errors import INTERRUPTED, error_message
    from tfperf.exports.arrays import read_arrays
    from tfperf.report.page import check_report_path
    from tfperf.search.question import OBJECTIVES
    from tfperf.tuning import tune as search
    from tfperf.tuning.deploying import DEPLOYMENT

    if report is not None:
        check_report_path(report)
    if export is not None and export.exists() and (not export.is_dir() or any(export.iterdir())):
        raise typer.BadParameter(f"expected a new folder for --export. Received: {export}, which exists")
    within = None if export is None else export / DEPLOYMENT
    for option, target in (("--json", json or Path("results", "tune.json")), ("--export", within)):
        if target is not None:
            check_writable(option, target)
    chosen = chosen_from(OBJECTIVES, "--objective", objective)
    first = objective.split(",")[0].strip()  # which decides
    changes = () if transform == "none" else chosen_from(TRANSFORMATIONS, "--transform", transform)
    with Display() as display:
        try:
            tuned = search(
                model,
                read_arrays(inputs) if inputs is not None else None,
                objective=sorted(chosen, key=lambda one: one != first),
                batch=batch_sizes("--batch", batch or "1"),
                threads=whole_numbers("--threads", threads) if threads is not None else None,
                engines=chosen_from([known.name for known in known_engines()], "--engine", engine),
                precisions=chosen_from(PRECISIONS, "--precision", precision),
                transformations=changes,
                tolerance=tolerance,
                same_top1=same_top1,
                labels=read_arrays(labels) if labels is not None else None,
                accuracy_drop=share("--accuracy-drop", accuracy_drop) if accuracy_drop is not None else None,
                latency_limit=duration("--latency-limit", latency_limit) if latency_limit is not None else None,
                memory_limit=byte_count("--memory-limit", memory_limit) if memory_limit is not None else None,
                trial_seconds=trial_time,
                time_limit=time_limit,
                signature=signature,
                seed=seed,
                fresh=fresh,
                inputs_file=str(inputs) if inputs is not None else None,
                labels_file=str(labels) if labels is not None else None,
                watcher=display,
            )
        except (OSError, ValueError) as error:
            raise typer.BadParameter(error_message(error)) from error
    target = json or Path("results", f"tune_{tuned.outcome.model}.json")
    writers: list[tuple[Path | None, Callable[[Path], object]]] = [(target, tuned.to_json), (report, tuned.report)]
    if tuned.outcome.winner is not None:
        writers.append((export, tuned.export))
    written: list[str] = []
    try:
        write_each(writers, written)
    finally:
        display.answer(tuned, written)
    if tuned.outcome.ended == "interrupted":
        raise typer.Exit(INTERRUPTED)
    tuned.forget()
    if tuned.outcome.winner is None:
        raise typer.Exit(1)


def _refuse(context: typer.Context, names: Iterable[str], words: str) -> None:
    """Refuse options that were given and mean nothing here."""
    for name in sorted(names):
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(f"{words} --{name.replace('_', '-')}")
