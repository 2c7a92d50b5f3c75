"""How soon does `tfperf explain` answer on nets that people use, and are its predictions right?

    python benchmarks/explain_applications.py                   # four of Keras's nets at batch 1: about 10 minutes
    python benchmarks/explain_applications.py --net ResNet50    # one, of any in keras.applications

The command runs as a user runs it, each net in its own process and with no kernel known. The ceilings of the machine,
which take a minute, are measured before.

Exit code 0: every first verdict came within 60 s, every end within 120 s, and of all layers above 5 % of the kernels'
time at least 80 % are predicted within 30 %. 1: not so.
"""
# ruff: noqa: E402 - the path must be cleaned before anything is imported

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, NamedTuple

HERE = Path(__file__).resolve().parent
sys.path[:] = [folder for folder in sys.path if Path(folder).resolve() != HERE]
# else the names of these files would hide libraries
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import typer
from rich.console import Console
from rich.table import Table

from tfperf.explaining.explanation import NEAR, Explanation
from tfperf.hardware.machine import ceilings_of_this_machine
from tfperf.measure.results import read_document
from tfperf.measure.words import format_bytes, format_seconds

NETS = ("ResNet50", "DenseNet121", "EfficientNetB0", "ConvNeXtTiny")
BUILDER = "import keras\n\n\ndef build():\n    return keras.applications.{name}(weights=None)\n"
FIRST, END = 60.0, 120.0
"""Seconds until the first verdict, and until the end, at most."""

LEAST_NEAR = 0.8
"""Share of the layers that must be predicted within `NEAR`."""

DEADLINE = 600.0
"""Seconds after which a command is killed; it means a hang."""

console = Console(highlight=False)


class Run(NamedTuple):
    """One `tfperf explain`, from the start of its process."""

    first: float
    """Seconds until the verdict on the graph was printed."""
    end: float
    peak: int
    """Bytes of memory at the most."""
    explanation: Explanation


def main(net: Annotated[str | None, typer.Option(help="Only this one.")] = None) -> None:
    """Explain the nets, and show when the answers came."""
    table = Table("net", "first verdict", "end", "peak memory", "a call, as a graph", "near / above 5 %", box=None)
    runs = []
    with tempfile.TemporaryDirectory() as scratch:
        known = Path(scratch, "known")
        ceilings_of_this_machine(known / "hardware", False, False, console.print)
        for name in [net] if net else NETS:
            console.print(name)
            runs.append(run := explained(name, known, Path(scratch, name)))
            (each,) = run.explanation.batches
            graph = each.call("graph")
            assert graph is not None
            table.add_row(
                name, f"{run.first:.0f} s", f"{run.end:.0f} s", format_bytes(run.peak),
                f"{format_seconds(graph.seconds)}, {graph.bound.adjective}", f"{each.near} / {len(each.big_layers)}",
            )  # fmt: skip
            for doubt in run.explanation.doubts:
                console.print(f"doubt: {doubt}", markup=False)
    console.print(table)
    batches = [each for run in runs for each in run.explanation.batches]
    near, layers = sum(each.near for each in batches), sum(len(each.big_layers) for each in batches)
    console.print(f"{near} of {layers} layers within {NEAR:.0%}; at least {LEAST_NEAR:.0%} wanted")
    soon = all(run.first <= FIRST and run.end <= END for run in runs)
    raise typer.Exit(0 if soon and near >= LEAST_NEAR * layers else 1)


def explained(name: str, known: Path, folder: Path) -> Run:
    """Run the command on a net of keras.applications, in a folder that knows the machine's ceilings alone."""
    shutil.copytree(known, folder / "cache")
    (folder / "net.py").write_text(BUILDER.format(name=name), encoding="utf-8")
    command = [sys.executable, "-m", "tfperf", "explain", "net.py:build", "--json", "explanation.json"]
    environment = os.environ | {"TFPERF_CACHE": str(folder / "cache"), "COLUMNS": "500"}
    start, first = time.monotonic(), DEADLINE
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                if line.startswith("so far: graph: "):
                    first = time.monotonic() - start
                if time.monotonic() - start > DEADLINE:
                    raise TimeoutError(f"{name}: not ended after {DEADLINE:g} s")
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        finally:
            process.kill()
    if process.returncode != 0:
        raise RuntimeError(f"{name}: the command ended with {process.returncode}")
    end = time.monotonic() - start
    return Run(first, end, usage.ru_maxrss * 1024, read_document(folder / "explanation.json", Explanation))


if __name__ == "__main__":
    typer.run(main)
