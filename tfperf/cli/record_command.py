"""`tfperf record`."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["launch_command", "record"]

RECORDED = Path("docs", "recorded")
"""Where a checkout keeps recorded runs."""

DEADLINE = 1800.0
"""Seconds for one recipe, run whole."""


def record(
    names: Annotated[list[str] | None, typer.Argument(metavar="[RECIPE ...]", help="Which; all if none.")] = None,
    folder: Annotated[Path, typer.Option(metavar="FOLDER", help="Where recordings are kept.")] = RECORDED,
    missing: Annotated[bool, typer.Option("--missing", help="Leave out those that are recorded and fresh.")] = False,
) -> None:
    """Run recipes whole, and keep result and plot for the book.

    They are kept under FOLDER/MACHINE, MACHINE after this machine's processor and cores. A recipe's recording is
    replaced as soon as the recipe has ended well; one that fails leaves the old one as it is. Nothing else should
    run meanwhile.
    """
    from tfperf.cli.run_all import run_all
    from tfperf.cookbook.catalog import find_recipe, list_recipes
    from tfperf.cookbook.flags import result_file
    from tfperf.cookbook.recording import Recording, read_recordings, technique_digest, why_stale, without_noise
    from tfperf.files import why_not_writable, writing_whole
    from tfperf.measure.environment import machine_name
    from tfperf.measure.results import read_result, write_result

    recipes = {name: find_recipe(name) for name in names} if names else list_recipes()
    target = folder / machine_name()
    for place in (target / "all.json", result_file("all")):
        if reason := why_not_writable(place):
            raise typer.BadParameter(reason)
    target.mkdir(parents=True, exist_ok=True)  # where it cannot be, no recipe need run
    if missing:
        kept = read_recordings(target)
        recipes = {name: path for name, path in recipes.items() if name not in kept or why_stale(kept[name], path)}
    digests = {name: technique_digest(path) for name, path in recipes.items()}

    def keep(name: str, file: Path) -> None:
        result = without_noise(read_result(file))
        if result.dataset:
            result = result.model_copy(update={"dataset": result.dataset.replace(str(Path.home()), "~")})
        with writing_whole(target / f"{name}.svg") as plot:
            plot.write(file.with_suffix(".svg").read_bytes())
        write_result(target / f"{name}.json", Recording(technique=digests[name], result=result))

    code = run_all(recipes, ["--svg"], DEADLINE, command=launch_command, on_done=keep)
    print(f"Recordings of this machine: {target}/")
    raise typer.Exit(code)


def launch_command(path: Path) -> Sequence[str]:
    """How a recipe is started: those that are written for several ranks in as many as there are cores, at least 2."""
    from tfperf.cli.run_all import plain_command
    from tfperf.cookbook.catalog import read_header

    if not read_header(path).command.startswith("horovodrun"):
        return plain_command(path)
    ranks = max(2, min(4, len(os.sched_getaffinity(0))))
    return sys.executable, "-m", "tfperf", "launch", "-np", str(ranks), sys.executable, str(path)
