"""`tfperf scale`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tfperf.importing import load_tensorflow

if TYPE_CHECKING:
    from tfperf.cli.steps import Steps
    from tfperf.scaling.step import Cluster
    from tfperf.scaling.workload import BatchTimes

__all__ = ["scale"]


def scale(
    model: Annotated[str, typer.Argument(help="A net's name, file.py:callable, module:callable or a .keras file.")],
    workers: Annotated[
        str | None,
        typer.Option(metavar="NUMBERS", help="1,4,16, or 1:4096 for 1, 2, 4, ... [1:64; without --link 1:cores]"),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Examples of a step of each worker.")] = 64,
    link: Annotated[
        str | None,
        typer.Option(metavar="LINK", help="The line of a node: 25Gbps,15us. Left out: processes of this machine."),
    ] = None,
    per_node: Annotated[int, typer.Option(min=1, help="Workers of a node, which share its line.")] = 1,
    inside: Annotated[
        str | None, typer.Option(metavar="LINK", help="The link inside a node. [96Gbps,0us, PCIe 3.0 x16]")
    ] = None,
    algorithm: Annotated[
        str,
        typer.Option(
            help="auto, gather, ring, tree, halving_doubling, hierarchical or parameter_server. auto takes the "
            "fastest that the transport has."
        ),
    ] = "auto",
    servers: Annotated[int, typer.Option(min=1, help="Parameter servers, on hosts of their own.")] = 1,
    transport: Annotated[
        str | None,
        typer.Option(help="nccl-tcp, nccl-rdma, mpi-tcp or grpc. [nccl-tcp; mpi-tcp where steps run on CPUs]"),
    ] = None,
    images_per_second: Annotated[
        float | None, typer.Option(help="Speed of one worker alone. Left out: measured on this machine.")
    ] = None,
    fp16: Annotated[bool, typer.Option("--fp16", help="Send gradients as float16.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the weights of a net by name.")] = 0,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write all figures there.")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the curves there: .png.")] = None,
) -> None:
    """Predict what more workers would buy.

    Each worker keeps its batch and exchanges its gradients with all others before the next step. Speed of one
    worker and link are given, or measured on this machine. Low: nothing overlaps. High: everything does.
    """
    from tfperf.cli.options import batch_sizes, check_writable
    from tfperf.scaling.algorithms import ALGORITHMS
    from tfperf.scaling.constants import TRANSPORTS
    from tfperf.scaling.links import Link
    from tfperf.system import usable_cores

    numbers = batch_sizes("--workers", workers or ("1:64" if link else f"1:{usable_cores()}"))
    names = [name for name in TRANSPORTS if name != "measured"]
    if algorithm not in (*ALGORITHMS, "auto"):
        raise typer.BadParameter(f"expected --algorithm as auto, {', '.join(ALGORITHMS)}. Received: {algorithm}")
    if transport is not None and (transport not in names or link is None):
        raise typer.BadParameter(f"expected --transport as {', '.join(names)}, beside --link. Received: {transport}")
    if images_per_second is not None and not 0 < images_per_second < 1e12:
        raise typer.BadParameter(f"expected --images-per-second above 0. Received: {images_per_second}")
    if uneven := [n for n in numbers if n > per_node and n % per_node]:
        raise typer.BadParameter(f"expected --per-node to divide the workers. Received: {uneven[0]} by {per_node}")
    if link is None and (per_node > 1 or inside is not None or images_per_second is not None):
        raise typer.BadParameter("expected --link, as 25Gbps,15us, beside --per-node, --inside, --images-per-second")
    line, inner = (None if text is None else Link.parse(text) for text in (link, inside))
    for option, path in (("--json", json), ("--plot", plot)):
        if path is not None:
            check_writable(option, path)
    if plot is not None and plot.suffix != ".png":
        raise typer.BadParameter(f"expected --plot to end in .png. Received: {plot}")
    load_tensorflow()
    from dataclasses import replace

    import tensorflow as tf
    from rich.console import Console
    from rich.markup import escape

    from tfperf.cli.steps import Steps
    from tfperf.errors import TfperfError, escape_unprintable
    from tfperf.exports import open_model
    from tfperf.measure.results import write_result
    from tfperf.report.scaling import scale_table, write_scale_plot
    from tfperf.scaling.forecast import outlook
    from tfperf.scaling.showing import assumptions, record, rows, verdicts
    from tfperf.scaling.step import Cluster, Exchange
    from tfperf.scaling.workload import Workload

    with Steps("opening the model") as steps:
        net = open_model(model, seed=seed).net
        if net is None:
            raise TfperfError(f"expected a Keras model, which can be trained. Received: the SavedModel {model}")
        speed = images_per_second or 1.0
        workload = Workload.from_net(net, batch, batch / speed)
        times = None if images_per_second is not None else _times(model, batch, seed, steps)
        if times is not None:
            workload = replace(workload, seconds=times.seconds(batch))
        if line is None:
            cluster, source = _local(model, batch, seed, workload.seconds, numbers[-1], steps)
        else:
            on_gpu = images_per_second is not None or bool(tf.config.list_physical_devices("GPU"))
            way = transport or ("nccl-tcp" if on_gpu else "mpi-tcp")
            inner = inner or (Link.parse("96Gbps,0us") if per_node > 1 else None)
            cluster = Cluster(1, line, per_node, inner, way, servers)
            source = "the links are as given, and not calibrated"
    whole = cluster.transport == "grpc"  # as TensorFlow's servers have them
    view = outlook(
        workload, cluster, Exchange(algorithm, compression=0.5 if fp16 else 1.0, whole_tensors=whole), numbers
    )
    shown, assumed = rows(view), assumptions(view, times, source)
    console = Console(highlight=False)
    title = f"{escape_unprintable(model)}, batch {batch} a worker"
    console.rule(escape(title))
    console.print(scale_table(shown))
    console.print()
    for sentence in (*verdicts(view, times), *assumed):
        console.print(f"- {escape_unprintable(sentence)}", markup=False)
    if json is not None:
        calibrated = times is not None and line is None
        write_result(json, record(view, escape_unprintable(model), calibrated, assumed))
    if plot is not None:
        write_scale_plot(plot, shown, view.knee, title)
    if written := ", ".join(str(path) for path in (json, plot) if path is not None):
        console.print(f"written: {escape_unprintable(written)}", markup=False)


def _times(model: str, batch: int, seed: int, steps: "Steps") -> "BatchTimes":
    """Steps of one worker, measured at up to three batch sizes."""
    from tfperf.scaling.calibrating import measure_batch_times

    steps.begin("measuring a step of one worker")
    return measure_batch_times(model, sorted({max(1, batch // 4), max(1, batch // 2), batch}), seed=seed)


def _local(model: str, batch: int, seed: int, alone: float, most: int, steps: "Steps") -> tuple["Cluster", str]:
    """Workers that are processes of this machine: how they slow each other, and what a message takes."""
    from tfperf.scaling.calibrating import measure_batch_times, measure_link, ring_link
    from tfperf.scaling.step import Cluster
    from tfperf.system import usable_cores

    steps.begin("measuring the link between two processes")
    pairs = usable_cores() if most > usable_cores() else 1
    line = ring_link(measure_link(rings=pairs).link)
    if most == 1:
        return Cluster(1, line), f"the link {line} is measured between two processes of this machine"
    steps.begin("measuring two workers that share this machine")
    slower = max(1.0, measure_batch_times(model, [batch], workers=2, seed=seed).seconds(batch) / alone)
    source = (
        f"all workers are processes of this machine; the link {line} is measured between two of them"
        f"{f', in {pairs} pairs at once, a core each' * (pairs > 1)}, and two of them "
        f"at once take {slower:.2f} times as long for a step as one; more are taken to slow each other in proportion"
    )
    return Cluster(1, line, most, slowdown=1 + (slower - 1) * (most - 1)), source
