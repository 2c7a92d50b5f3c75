"""Does `tfperf tune` find the best plan, in what part of the time that trying all of them takes, and how fast is it?

    python benchmarks/tune.py search                 # beside exhaustive search: hours; leave the machine alone
    python benchmarks/tune.py search --net mlp       # one net; --net mine.py:build for a model of your own
    python benchmarks/tune.py speed                  # what is gained over what users have: half an hour
    python benchmarks/tune.py search --json figures.json    # go on with the nets that the file lacks
    python benchmarks/tune.py search --json figures.json --again    # tune anew, beside the exhaustive searches it keeps
    python benchmarks/tune.py search --without float16   # where the machine has only slow loops for it: minutes a plan

search: the same question is answered twice, each time with an empty cache: by `tune`, and by trying every plan of its
space, each in a fresh process, started two at a time and measured as `tfperf.measure.measure` does by default. Then the
plan that `tune` chose and the best few of the exhaustive search are measured in turns, a few times, each in fresh
processes: those of one plan differ, as by their place in memory.

Exit code 0: every choice is within 3 % of the best, in at most a quarter of the time; every speed-up is reached.
1: not so.
"""
# ruff: noqa: E402 - the path must be cleaned before anything is imported

import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import geometric_mean
from threading import Lock
from typing import Annotated, Any

HERE = Path(__file__).resolve().parent
sys.path[:] = [folder for folder in sys.path if Path(folder).resolve() != HERE]
# else the names of these files would hide libraries
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import typer
from pydantic import TypeAdapter
from rich.console import Console
from rich.progress import track

from tfperf.engines.building import applicable
from tfperf.engines.plan import PRECISIONS, Plan, Precision
from tfperf.exports import open_model
from tfperf.files import writing_whole
from tfperf.measure import Comparison, Environment, measure
from tfperf.measure.words import format_ratio, format_seconds
from tfperf.search.question import Question
from tfperf.search.space import Space
from tfperf.trials.launching import Launcher
from tfperf.trials.process import EngineProcess, Origin
from tfperf.trials.side_by_side import Examples, checked_trial, measure_in_turns, measured_trial
from tfperf.trials.trial import TrialError, median_seconds
from tfperf.tuning import tune

MOST_WORSE, MOST_TIME = 0.03, 0.25
"""By how much the choice may be slower than the best, and what share of exhaustive search's time it may take."""

RIVALS = 5
"""How many of the best plans of the exhaustive search are measured again beside the choice."""

APART_SECONDS, APART_ROUNDS = 20.0, 4
"""Seconds of measuring them in turns, and how often, each time in fresh processes."""

NETS = {name: name for name in ("mlp", "mnist_cnn", "resnet18", "transformer")} | {
    "MobileNetV2": f"{HERE}/peers/nets.py:mobilenet_v2"
}

SPEED_UPS = {
    # net: {tolerance: (default, at least)}
    "mlp": {1e-4: {"eager": 100.0, "predict": 2000.0}},
    "MobileNetV2": {1e-4: {"graph": 3.8}, 2e-2: {"graph": 5.0}},
    "EfficientNetB0": {1e-4: {"graph": 2.0}, 2e-2: {"graph": 4.0}},
    "ResNet50": {1e-4: {"graph": 1.4}, 2e-2: {"graph": 2.5}},
}

BUILDERS = NETS | {
    "EfficientNetB0": f"{HERE}/peers/nets.py:efficientnet_b0",
    "ResNet50": f"{HERE}/peers/nets.py:resnet50",
}

app = typer.Typer(help=__doc__, add_completion=False, rich_markup_mode=None)
console = Console(highlight=False)


# ---------------------------------------------------------------- the search


@app.command()
def search(
    net: Annotated[str | None, typer.Option(help="Only this one, or any MODEL of `tfperf tune`.")] = None,
    tolerance: Annotated[float, typer.Option(help="2e-2 admits bfloat16 and int8, the whole space.")] = 2e-2,
    without: Annotated[Precision | None, typer.Option(help="Neither search tries this one.")] = None,
    json_path: Annotated[Path | None, typer.Option("--json", help="Keep the figures; go on with them.")] = None,
    again: Annotated[bool, typer.Option(help="Tune anew where the file has what every plan took.")] = False,
) -> None:
    """Compare the search with trying every plan."""
    figures: dict[str, Any] = (
        json.loads(json_path.read_text(encoding="utf-8")) if json_path and json_path.exists() else {}
    )
    for name in [net] if net else NETS:
        key = f"{name} {tolerance:g}" + (f" without {without}" if without else "")
        if again or key not in figures:
            precisions = [one for one in PRECISIONS if one != without]
            figures[key] = searched(name, tolerance, precisions, figures.get(key))
            keep(json_path, figures)
        console.print(told_search(key, figures[key]), markup=False)
    raise typer.Exit(0 if all(map(keeps_limits, figures.values())) else 1)


def searched(
    name: str, tolerance: float, precisions: Sequence[Precision], before: dict[str, Any] | None
) -> dict[str, Any]:
    """What the search and exhaustive search found, and how long they took; the latter as it was, if it was before."""
    model = NETS.get(name, name)
    with tempfile.TemporaryDirectory() as place:
        began = time.monotonic()
        tuned = tune(model, tolerance=tolerance, precisions=precisions, cache=Path(place, "search"), fresh=True)
        seconds = time.monotonic() - began
        tuned.forget()
        question, chosen = tuned.outcome.question, tuned.best.trial.plan
        changes = applicable(open_model(model))
        space = Space(question, changes)
        in_all = [*space.defaults, *(plan for plan in space.plans() if space.hopeless(plan.precision) is None)]
        if before is not None and "every plan" in before:
            found, in_all_seconds = before["every plan"], before["all_seconds"]
        else:
            began = time.monotonic()
            found = exhaustive(model, question, in_all, Path(place, "all"))
            in_all_seconds = time.monotonic() - began
        rivals = sorted(found, key=lambda plan: found[plan])[:RIVALS]
        plans = list(dict.fromkeys([chosen, *(plan for plan in in_all if str(plan) in rivals)]))
        rounds = [apart(model, plans, question, Path(place, "search")) for _ in range(APART_ROUNDS)]
    times = {str(plan): [one[plan] for one in rounds] for plan in plans}
    costs = {plan: geometric_mean(seconds) for plan, seconds in times.items()}
    best = min(costs, key=lambda plan: costs[plan])
    looked = [trial for trial in tuned.outcome.trials if trial.status != "not tried"]
    return {
        "chosen": str(chosen),
        "equals": list(tuned.outcome.equals),
        "best": best,
        "worse": costs[str(chosen)] / costs[best] - 1,
        "seconds": seconds,
        "all_seconds": in_all_seconds,
        "looks": len(looked),
        "plans": len(in_all),
        "apart": times,
        "question": question.model_dump(mode="json"),
        "applicable": changes,
        "computes_float16": Environment.here().computes_float16,
        "looked at": {str(trial.plan): median_seconds(trial) for trial in looked if trial.measurement},
        "every plan": found,
    }


def exhaustive(model: str, question: Question, plans: Sequence[Plan], cache: Path) -> dict[str, float]:
    """Seconds a call of every plan, each in its own process; of those that ran within the tolerance."""
    servable = open_model(model)
    plans = random.Random(0).sample(plans, len(plans))
    (batch,) = question.batches
    found: dict[str, float] = {}
    measuring = Lock()
    with tempfile.TemporaryDirectory() as scratch:
        examples = Examples.store(Path(scratch), servable, batch)
        limits: dict[str, Any] = {"deadline": question.trial_seconds, "memory_limit": question.memory_limit}
        with Launcher(servable, Origin(model), Path(scratch), cache=cache, **limits) as launcher:

            def tried(plan: Plan) -> None:
                process: EngineProcess | None = None
                try:
                    process, loaded = launcher.start(plan)
                    trial = checked_trial(process, loaded, examples, tolerance=question.tolerance)
                    work = process.work(batch)
                    with measuring, launcher.quiet(process):
                        measured = measured_trial(trial, work, measure(work, name=trial.name))
                    found[str(plan)] = median_seconds(measured)
                except TrialError:
                    return
                finally:
                    if process is not None:
                        launcher.end(process)

            with ThreadPoolExecutor(2) as pool:
                for _ in track(pool.map(tried, plans), "every plan", total=len(plans), console=Console(stderr=True)):
                    pass
    return found


def apart(model: str, plans: Sequence[Plan], question: Question, cache: Path) -> dict[Plan, float]:
    """Seconds a call of plans measured in turns, in fresh processes."""
    servable = open_model(model)
    (batch,) = question.batches
    with tempfile.TemporaryDirectory() as scratch:
        examples = Examples.store(Path(scratch), servable, batch)
        with Launcher(servable, Origin(model), Path(scratch), cache=cache) as launcher:
            runs = []
            for plan in plans:
                process, loaded = launcher.start(plan)
                trial = checked_trial(process, loaded, examples, tolerance=question.tolerance)
                runs.append((trial, process.work(batch)))
            trials, comparison = measure_in_turns(runs, APART_SECONDS)
    if comparison is None:
        return {trial.plan: median_seconds(trial) for trial in trials}
    return {trial.plan: beside(comparison, trials[0].name, trial.name) for trial in trials}


def beside(comparison: Comparison, first: str, name: str) -> float:
    """Seconds of a call, from its ratio with the first, as what disturbs both cancels there."""
    base = comparison[first].median
    return base if name == first else base / comparison.ratio(first, name).estimate


def keeps_limits(one: dict[str, Any]) -> bool:
    return bool(one["worse"] <= MOST_WORSE and one["seconds"] <= MOST_TIME * one["all_seconds"])


def told_search(key: str, one: dict[str, Any]) -> str:
    share = one["seconds"] / one["all_seconds"]
    verdict = "holds" if keeps_limits(one) else "DOES NOT HOLD"
    chosen, best = (
        f"{one[which]} ({format_seconds(geometric_mean(one['apart'][one[which]]))})" for which in ("chosen", "best")
    )
    return (
        f"{key}: chose {chosen}, best {best}: {one['worse']:.1%} worse; {one['looks']} of {one['plans']} plans, "
        f"{one['seconds']:.0f} s of {one['all_seconds']:.0f} s ({share:.0%}): {verdict}"
    )


# ---------------------------------------------------------------- the speed


@app.command()
def speed(
    net: Annotated[str | None, typer.Option(help="Only this one.")] = None,
    json_path: Annotated[Path | None, typer.Option("--json", help="Keep the figures; go on with them.")] = None,
) -> None:
    """Tune the nets with limits on their speed-up over what users have: batch 1, threads as tune likes."""
    figures: dict[str, Any] = (
        json.loads(json_path.read_text(encoding="utf-8")) if json_path and json_path.exists() else {}
    )
    for name in [net] if net else SPEED_UPS:
        for tolerance, wanted in SPEED_UPS[name].items():
            key = f"{name} {tolerance:g}"
            if key not in figures:
                figures[key] = tuned_speed(name, tolerance, wanted)
                keep(json_path, figures)
            console.print(f"{key}: {figures[key]['answer']}", markup=False)
            for line in figures[key]["lines"]:
                console.print(f"    {line}", markup=False)
    raise typer.Exit(0 if all(one["holds"] for one in figures.values()) else 1)


def tuned_speed(name: str, tolerance: float, wanted: dict[str, float]) -> dict[str, Any]:
    """The speed-ups of one net."""
    tuned = tune(BUILDERS[name], tolerance=tolerance, same_top1=tolerance > 1e-4, fresh=True)
    tuned.forget()
    lines, holds = [], True
    for engine, least in wanted.items():
        ratio = tuned.outcome.speed_up(str(Plan(engine=engine, batch=1)))
        reached = ratio is not None and ratio.estimate >= least
        holds &= reached
        seen = format_ratio(ratio.interval) if ratio else "not measured"
        lines.append(f"{seen} of {engine}, at least {least:g}x: {'holds' if reached else 'DOES NOT HOLD'}")
    return {"answer": str(tuned), "lines": lines, "holds": holds}


def keep(path: Path | None, figures: dict[str, Any]) -> None:
    if path is not None:
        with writing_whole(path) as file:
            file.write(TypeAdapter(dict[str, Any]).dump_json(figures, indent=1))


if __name__ == "__main__":
    app()
