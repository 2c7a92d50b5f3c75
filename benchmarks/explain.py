"""Does `tfperf explain` predict what is measured: the time of each layer, and how it moves when something is changed?

    python benchmarks/explain.py                  # mlp, resnet18 and transformer at batch 1 and 64: 5 to 15 minutes
    python benchmarks/explain.py --net mlp        # one net
    python benchmarks/explain.py --try            # measure the techniques that it suggests, too

The kernels by themselves are measured anew; of the machine's ceilings, which take a minute, those that are kept do.

Exit code 0: of all layers above 5 % of the kernels' time at least 80 % are predicted within 30 %. 1: not so.
"""
# ruff: noqa: E402 - the path must be cleaned before anything is imported

import os
import sys
import tempfile
from pathlib import Path
from typing import Annotated

HERE = Path(__file__).resolve().parent
sys.path[:] = [folder for folder in sys.path if Path(folder).resolve() != HERE]
# else the names of these files would hide libraries
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import typer
from pydantic import TypeAdapter
from rich.console import Console
from rich.table import Table

from tfperf.explaining import explain
from tfperf.explaining.explanation import NEAR, Explained, Explanation
from tfperf.files import writing_whole
from tfperf.hardware.machine import ceilings_of_this_machine
from tfperf.measure.words import plain_ratio

LEAST_NEAR = 0.8
"""Share of the layers that must be predicted within `NEAR`."""

NETS = ("mlp", "resnet18", "transformer")
BATCHES = (1, 64)

console = Console(highlight=False)


def main(
    net: Annotated[str | None, typer.Option(help="Only this one, or another model.")] = None,
    try_techniques: Annotated[bool, typer.Option("--try", help="Measure the techniques that are suggested.")] = False,
    json_path: Annotated[Path | None, typer.Option("--json", help="Keep the explanations.")] = None,
) -> None:
    """Explain the nets, and count what came as predicted."""
    found: list[Explanation] = []
    with tempfile.TemporaryDirectory() as cache:
        ceilings = ceilings_of_this_machine(None, False, False, console.print)
        for name in [net] if net else NETS:
            one = explain(name, BATCHES, try_techniques=try_techniques, ceilings=ceilings, cache=Path(cache))
            found.append(one)
            console.print(told(one), markup=False)
            for doubt in one.doubts:
                console.print(f"doubt: {doubt}", markup=False)
    if json_path is not None:
        with writing_whole(json_path) as file:
            file.write(TypeAdapter(list[Explanation]).dump_json(found, indent=1))
    explained = [each for one in found for each in one.batches]
    near, layers = sum(each.near for each in explained), sum(len(each.big_layers) for each in explained)
    changes = [change for each in explained for change in each.interventions]
    console.print(f"{near} of {layers} layers within {NEAR:.0%}: {near / layers:.0%} (at least {LEAST_NEAR:.0%})")
    console.print(f"{sum(change.agrees for change in changes)} of {len(changes)} times moved as the class says")
    raise typer.Exit(0 if near >= LEAST_NEAR * layers else 1)


def told(one: Explanation) -> Table:
    """A row for each layer, change and technique: what was predicted, and what was seen."""
    table = Table(title=one.model, title_justify="left")
    for column in ("batch", "what", "predicted", "seen", ""):
        table.add_column(column, justify="left" if column in ("what", "") else "right")
    for each in one.batches:
        for row in rows(each):
            table.add_row(str(each.batch), *row)
        table.add_section()
    return table


def rows(each: Explained) -> list[tuple[str, str, str, str]]:
    """The figures of one batch size."""
    layers = [
        (layer.name, f"{layer.predicted * 1e6:.1f} us", f"{layer.seconds * 1e6:.1f} us", f"{layer.error:+.0%}")
        for layer in each.big_layers
    ]
    changes = [
        (f"{change.what}, {change.bound}", f"{change.expected:.2f}", f"{1 / change.ratio.estimate:.2f}",
         "" if change.agrees else "NOT as predicted")
        for change in each.interventions
    ]  # fmt: skip
    techniques = [
        (f"{one.recipe}, {one.way}", f"{plain_ratio(one.gain)}x", f"{plain_ratio(one.measured.estimate)}x", "")
        for one in each.techniques
        if one.measured is not None
    ]
    return [*layers, *changes, *techniques]


if __name__ == "__main__":
    typer.run(main)
