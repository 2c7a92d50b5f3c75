"""`tfperf hardware`."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["hardware"]


def hardware(
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write all figures there, in SI units.")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the figures there: .svg or .png.")] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Measure again what was kept of an earlier measurement.")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Measure fewer sizes and samples, in half the time.")] = False,
    threads: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBERS", help="Thread counts beside 1: 2,4; measured now and not kept. Left out: all cores."
        ),
    ] = None,
) -> None:
    """Measure what this machine can give.

    That is its arithmetic, memory, calls, disk, loopback network, and the latency of each kind of memory.
    """
    from tfperf.cli.options import check_writable, whole_numbers
    from tfperf.report.plots import check_plot_path

    counts = None if threads is None else whole_numbers("--threads", threads)
    if json is not None:
        check_writable("--json", json)
    if plot is not None:
        check_plot_path(plot)
    from rich.console import Console

    from tfperf.cli.steps import Steps
    from tfperf.errors import HardwareError, escape_unprintable
    from tfperf.hardware.ceilings.measuring import measure_ceilings
    from tfperf.hardware.machine import Machine, ceilings_of_this_machine, ladder_of_this_machine
    from tfperf.hardware.processor import data_caches
    from tfperf.measure.results import write_result
    from tfperf.report.hardware import (
        arithmetic_table,
        call_table,
        ladder_table,
        memory_table,
        write_ceilings_plot,
    )

    missing, ladder = "", None
    with Steps("the ceilings of this machine") as steps:
        if counts is None:
            ceilings = ceilings_of_this_machine(fresh=fresh, quick=quick, on_step=steps.begin)
        else:
            ceilings = measure_ceilings(counts, quick, steps.begin)
        try:
            ladder = ladder_of_this_machine(fresh=fresh, quick=quick, on_step=steps.begin)
        except HardwareError as error:
            missing = str(error)
    caches = data_caches()
    console = Console(highlight=False)
    console.print(arithmetic_table(ceilings))
    for table in (memory_table(ceilings, caches), call_table(ceilings)):
        console.print()
        console.print(table)
    console.print()
    if ladder is None:
        console.print(f"No latency ladder: {escape_unprintable(missing)}", markup=False)
    else:
        console.print(ladder_table(ladder))
    if json is not None:
        write_result(json, Machine(ceilings=ceilings, ladder=ladder))
        console.print(f"\nthe same figures are in {escape_unprintable(json)}", markup=False)
    if plot is not None:
        write_ceilings_plot(plot, ceilings, caches)
        console.print(f"\na picture is in {escape_unprintable(plot)}", markup=False)
