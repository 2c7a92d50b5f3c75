"""`tfperf run`."""

import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import typer

from tfperf.importing import QUIET_LOG
from tfperf.processes import ChildProcess

__all__ = ["run"]

GRACE = 10.0
"""Seconds that a recipe has to end by itself after Ctrl-C or a failure of ours, before it is killed."""


def run(context: typer.Context) -> None:
    """Run recipes, each in a fresh process.

    `tfperf run NAME [NAME ...] [FLAG ...]` gives the flags to each of the recipes; `tfperf run NAME --help` shows
    them, `tfperf list` the names.

    `tfperf run --all` runs every recipe. Each prints into a log and has a row in the table at the end. Recipes
    that lack a package or their data are skipped.
    """
    signal.signal(signal.SIGTERM, _exit_on_signal)
    arguments = context.args
    if "--all" in arguments:
        raise typer.Exit(_run_all([argument for argument in arguments if argument != "--all"]))
    first_flag = next((i for i, argument in enumerate(arguments) if argument.startswith("-")), len(arguments))
    names, flags = arguments[:first_flag], arguments[first_flag:]
    if not names:
        if flags in (["--help"], ["-h"]):
            print(context.get_help())
            return
        raise typer.BadParameter("expected the name of a recipe, or --all; `tfperf list` shows the names")
    if len(names) > 1 and any(flag.split("=")[0] == "--json" for flag in flags):
        raise typer.BadParameter("--json names one file; run the recipes one by one, or leave it out")
    from tfperf.cookbook.catalog import find_recipe

    codes = run_recipes([find_recipe(name) for name in names], flags)
    if len(names) > 1:
        _summarize(dict(zip(names, codes, strict=True)))
    raise typer.Exit(next((code for code in codes if code), 0))


def _run_all(flags: list[str]) -> int:
    """Run every recipe; the exit code."""
    from tfperf.cookbook.catalog import list_recipes
    from tfperf.cookbook.flags import check_shared_flags

    check_shared_flags(flags)
    from tfperf.cli.run_all import run_all

    return run_all(list_recipes(), flags)


def run_recipes(paths: Sequence[Path], flags: Sequence[str]) -> list[int]:
    """Run recipes one after the other, each in a process of its own that ends with this one; their exit codes."""
    codes = []
    for number, path in enumerate(paths, start=1):
        if len(paths) > 1:
            print(f"[{number}/{len(paths)}] {path.stem}", flush=True)
        command = [sys.executable, str(path), *flags]
        shared: dict[str, Any] = {"stdin": None, "stdout": None, "stderr": None, "on_terminal": True}
        with ChildProcess(command, environment=QUIET_LOG | os.environ, grace=GRACE, **shared) as process:
            try:
                codes.append(process.wait())
            except KeyboardInterrupt:  # the recipe has had it too
                with contextlib.suppress(TimeoutError):
                    process.wait(GRACE)
                raise
    return codes


def _exit_on_signal(number: int, _: object) -> NoReturn:
    """End by an exception, so that what was started is ended first."""
    sys.exit(128 + number)


def _summarize(codes: dict[str, int]) -> None:
    """Print what the recipes found, from the files they wrote."""
    from rich.console import Console

    from tfperf.cookbook.flags import result_file
    from tfperf.measure.results import read_result
    from tfperf.report.tables import summary_table

    console = Console(highlight=False)
    files = {name: result_file(name) for name, code in codes.items() if code == 0}
    console.rule("[bold]Summary")
    console.print(summary_table([read_result(file) for file in files.values()]))
    for name, code in codes.items():
        words = f"results: {files[name]}" if name in files else f"FAILED with exit code {code}"
        console.print(f"{name}: {words}", markup=False)
