"""Does every exercise of every recipe do what the recipe says?

    python benchmarks/exercises.py                      # all that are not fresh: some two hours
    python benchmarks/exercises.py --only hybridize     # those of one recipe; several times
    python benchmarks/exercises.py --again              # the fresh ones too
    python benchmarks/exercises.py --quick              # rough runs, for whoever writes a check; nothing is kept

A recipe's header proposes changes under `Try:`, each with what should then happen. Each is made here: the recipe runs
whole with the change, in a process of its own, and its figures are compared with those of the recipe as it is, which
`tfperf record` keeps, or which is run once. Where noise decides, an effect is seen only if it is larger than the
intervals of both ratios allow. After each exercise docs/exercises/MACHINE.json is written, so that a run that was
stopped goes on; what did not hold is made again. Nothing else should run meanwhile.

Exit code 0: every effect was seen, or is about what this machine lacks. 1: one was not. 2: bad input.
"""
# ruff: noqa: E402 - the path must be cleaned before anything is imported

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:] = [folder for folder in sys.path if Path(folder).resolve() != ROOT / "benchmarks"]
sys.path.append(str(ROOT))  # else the names of files here would hide libraries

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.exercise_checks import EXERCISES, USUAL_RANKS, Exercise, NotHereError, Outcome, RunError
from tfperf.cli.record_command import DEADLINE, RECORDED
from tfperf.cli.run_all import lacking
from tfperf.cookbook.catalog import Header, find_recipe, list_recipes, read_header
from tfperf.cookbook.exercises import (
    ExerciseOutcome,
    ExerciseRun,
    ExerciseRuns,
    effects_by_change,
    exercises_file,
    read_exercise_runs,
)
from tfperf.cookbook.recording import read_recordings, technique_digest, why_stale
from tfperf.errors import BAD_INPUT, INTERRUPTED, RecipeError, TfperfError, escape_unprintable
from tfperf.explaining.explanation import Explanation
from tfperf.files import scratch_folder
from tfperf.importing import QUIET_LOG
from tfperf.measure.environment import machine_name
from tfperf.measure.results import Result, read_document, write_result
from tfperf.processes import run

RESULT = "result.json"

console = Console(highlight=False)


class Laboratory:
    """Runs recipes as they are and with a change, each in a folder of its own."""

    def __init__(self, scratch: Path, recorded: Mapping[str, Result], quick: bool) -> None:
        """Take the recipes as they are from `recorded`, and run those that are not there."""
        self._scratch, self._quick, self._usual, self._runs = scratch, quick, dict(recorded), 0

    def usual(self, recipe: str) -> Result:
        """Give the result of a recipe as it is; it is run once."""
        if recipe not in self._usual:
            console.print(f"{recipe}, as it is", style="dim", markup=False)
            self._usual[recipe] = self._run(recipe, self._recipe_command(recipe, find_recipe(recipe)))
        return self._usual[recipe]

    def changed(self, one: Exercise) -> Any:
        """Run a recipe with the change; what was written."""
        console.print(f"{one.recipe}, {one.change}", style="dim", markup=False)
        if one.command:
            return self._run(one.recipe, [*TFPERF, *one.command], reads=one.reads)
        path = find_recipe(one.recipe)
        if one.edit:
            path = edited(path, self._scratch, *one.edit)
        command = [*self._recipe_command(one.recipe, path, one.ranks), *one.flags]
        return self._run(one.recipe, command, one.environment)

    def _recipe_command(self, recipe: str, path: Path, ranks: int = USUAL_RANKS) -> list[str]:
        """Start a recipe, in several ranks if it is written for them."""
        several = read_header(find_recipe(recipe)).command.startswith("horovodrun")
        return [*([*TFPERF, "launch", "-np", str(ranks)] if several else []), sys.executable, str(path)]

    def _run(
        self,
        recipe: str,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        reads: type[Result] | type[Explanation] = Result,
    ) -> Any:
        """Run a command to its end, and read its result.

        Raises:
            NotHereError: something that the recipe needs is not here, or there is nothing to measure here.
            RunError: it ended otherwise.
        """
        self._runs += 1
        folder = self._scratch / f"run_{self._runs}"
        folder.mkdir()
        paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        variables = QUIET_LOG | os.environ | {"PYTHONPATH": paths} | dict(environment or {})
        words = [*command, "--json", RESULT, *(["--quick"] if self._quick else [])]
        try:
            done = run(words, deadline=DEADLINE, merged=True, environment=variables, folder=folder)
        except TimeoutError:
            raise RunError(f"it did not end within {DEADLINE:g} s") from None
        last = next((line for line in reversed(done.output.splitlines()) if line.strip()), "it said nothing")
        if done.code and (lack := lacking(read_header(find_recipe(recipe)).needs)):
            raise NotHereError(lack)
        if done.code:
            raise RunError(f"exit code {done.code}: {last}")
        if not (folder / RESULT).exists():  # it ended well and measured nothing: there is nothing to measure here
            raise NotHereError(last)
        return read_document(folder / RESULT, reads)


TFPERF = (sys.executable, "-m", "tfperf")


def edited(recipe: Path, folder: Path, old: str, new: str) -> Path:
    """Write a copy of a recipe, in which a text that is there once is replaced.

    Raises:
        RunError: it is not there once.
    """
    code = recipe.read_text(encoding="utf-8")
    if (count := code.count(old)) != 1:
        raise RunError(
            f"expected the text to replace once in {recipe.name}, found it {count} times: {old.split()[0]} ..."
        )
    copy = folder / recipe.name
    copy.write_text(code.replace(old, new), encoding="utf-8")
    return copy


def tried(one: Exercise, laboratory: Laboratory) -> Outcome:
    """Make an exercise."""
    try:
        usual = laboratory.usual(one.recipe)
        if reason := one.why_not(usual.environment):
            raise NotHereError(reason)
        return one.check(usual, laboratory.changed(one))
    except NotHereError as error:
        return Outcome(ExerciseOutcome.NOT_HERE, str(error))
    except (RunError, TfperfError) as error:
        return Outcome(ExerciseOutcome.FAILED, str(error))
    except Exception as error:  # a figure is not where the check looks for it: the check must be mended
        return Outcome(ExerciseOutcome.FAILED, f"the check failed: {type(error).__name__}: {error}")


def effects(headers: Mapping[str, Header]) -> dict[tuple[str, str], str]:
    """Give each exercise of these recipes, with the effect that is stated.

    Raises:
        RecipeError: one has no check.
    """
    stated = {
        (name, change): effect for name, one in headers.items() for change, effect in effects_by_change(one).items()
    }
    if missing := [key for key in stated if key not in EXERCISES]:
        recipe, change = missing[0]
        raise RecipeError(
            f"expected a check of every exercise in benchmarks/exercise_checks.py; {recipe}, {change} has none"
        )
    return stated


def fresh_recordings() -> dict[str, Result]:
    """Give the recorded runs of this machine that are of today's techniques.

    Raises:
        TfperfError: a recording is damaged.
    """
    recordings = read_recordings(ROOT / RECORDED / machine_name())
    return {name: one.result for name, one in recordings.items() if not why_stale(one, find_recipe(name))}


def put(runs: ExerciseRuns, new: ExerciseRun, order: Sequence[tuple[str, str]]) -> ExerciseRuns:
    """Replace the run of an exercise; those of exercises that are no more go."""
    by_key = {(one.recipe, one.change): one for one in (*runs.runs, new)}
    return ExerciseRuns(runs=tuple(by_key[key] for key in order if key in by_key))


def show(runs: Sequence[ExerciseRun]) -> None:
    """Show a row for each exercise."""
    colours = {ExerciseOutcome.HELD: "green", ExerciseOutcome.FAILED: "red"}
    table = Table("recipe", "change", "", "figures", box=None)
    for one in runs:
        colour = colours.get(one.outcome, "yellow")
        cells = one.recipe, escape(one.change), f"[{colour}]{one.outcome}[/{colour}]", escape(one.words)
        table.add_row(*cells)
    console.print(table)
    counts = {outcome: sum(one.outcome is outcome for one in runs) for outcome in ExerciseOutcome}
    console.print(", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count))


def run_exercises(only: Sequence[str], again: bool, quick: bool) -> list[ExerciseRun]:
    """Make the exercises of these recipes that are not fresh, keep each, and give all of them."""
    headers = {name: read_header(path) for name, path in list_recipes().items()}
    order = list(effects(headers))
    recipes = {name: find_recipe(name) for name in only} or list_recipes()
    digests = {name: technique_digest(path) for name, path in recipes.items()}
    file = exercises_file(ROOT / RECORDED, machine_name())
    kept = ExerciseRuns() if quick else read_exercise_runs(file)
    with scratch_folder("exercises-") as scratch:
        laboratory = Laboratory(scratch, {} if quick else fresh_recordings(), quick)
        for (recipe, change), effect in effects({name: headers[name] for name in recipes}).items():
            old = kept.find(recipe, change)
            fresh = old and old.is_fresh(effect, digests[recipe]) and old.outcome is not ExerciseOutcome.FAILED
            if fresh and not again:
                continue
            began = time.monotonic()
            outcome, words = tried(EXERCISES[recipe, change], laboratory)
            words = escape_unprintable(words)
            console.print(f"    {outcome}, {time.monotonic() - began:.0f} s: {words}", markup=False)
            fields = {"recipe": recipe, "change": change, "effect": effect, "technique": digests[recipe]}
            kept = put(kept, ExerciseRun(**fields, outcome=outcome, words=words), order)
            if not quick:
                write_result(file, kept)
    return [one for one in kept.runs if one.recipe in recipes]


def main(
    only: Annotated[list[str] | None, typer.Option("--only", metavar="RECIPE", help="Several times.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Make those that are fresh, too.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Run recipes with --quick; keep nothing.")] = False,
) -> None:
    """Make every exercise, and check its effect."""
    try:
        runs = run_exercises(only or (), again, quick)
    except TfperfError as error:
        print(f"exercises: {escape_unprintable(error)}", file=sys.stderr)
        raise typer.Exit(BAD_INPUT) from error
    except KeyboardInterrupt:
        print("exercises: interrupted; what was done is kept", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    show(runs)
    raise typer.Exit(int(any(one.outcome is ExerciseOutcome.FAILED for one in runs)))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    typer.run(main)
