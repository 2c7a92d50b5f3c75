"""How long does a net train until it is right often enough, tuned by `tfperf tune --train` and by Keras's `fit`?

    python benchmarks/time_to_accuracy.py --json figures.json                   # ResNet-18 to 90 %: hours
    python benchmarks/time_to_accuracy.py --net lenet --target 0.8 --seeds 2    # minutes

Both have the same weights at the start, the same images in the same order, and Adam, for each seed. They train in
turns, a stretch of images at a time, each in a process of its own; after each stretch the accuracy on all test images
is taken. What counts is the time of training: neither tracing nor testing. With --json the seeds that are finished are
kept, and a second run goes on with them. The picture has both curves of every seed.

Exit code 0: with every seed both reach the target, and the tuned one takes less time in the mean. 1: not so.
"""
# ruff: noqa: E402 - the path must be cleaned before anything is imported

import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:] = [folder for folder in sys.path if Path(folder).resolve() != ROOT / "benchmarks"]
sys.path.insert(0, str(ROOT))

import numpy as np
import typer
from matplotlib.figure import Figure
from rich.console import Console

from tfperf.files import writing_whole
from tfperf.importing import load_tensorflow
from tfperf.measure.words import format_seconds
from tfperf.training.plan import TrainingPlan
from tfperf.trials.host import Child
from tfperf.trials.process import PlanProcess
from tfperf.trials.training.worker import TrainingWorker
from tfperf.trials.worker import serve

DATA = "fashion_mnist"
TEST_BATCH = 100
"""Images that are predicted together: in float32 faster than 500 on the machine where this was written."""
DEADLINE = 1800.0
"""Seconds for an answer: a stretch on a slow machine."""

console = Console(highlight=False)


class StretchWorker(TrainingWorker):
    """Trains a stretch of images at a time, in an order that a seed says."""

    def begin(self, seed: int, stretch: int) -> None:
        """Put the weights of a seed in place. A stretch is trained before, so that everything is traced."""
        self._seed, self._images, self._stretches = seed, stretch, 0
        self.stretch()
        self._restart(seed)
        self._stretches = 0

    def stretch(self) -> float:
        """Train the next stretch; seconds. What is left of an epoch's images after the last whole one waits."""
        import keras

        count = len(self._task.data[1])
        epoch, number = divmod(self._stretches, count // self._images)
        order = np.random.default_rng([self._seed, epoch]).permutation(count)
        chosen = order[number * self._images : (number + 1) * self._images]
        part = keras.tree.map_structure(lambda array: array[chosen], self._task.data)
        began = time.perf_counter()
        self._losses_of(part)
        self._stretches += 1
        return time.perf_counter() - began

    def accuracy(self) -> float:
        """The share of test images whose largest output is that of the label."""
        from tfperf.data import load

        data = load(DATA)
        images = data.test_images.astype("float32").reshape(-1, *self._model.input_shape[1:]) / 255
        answers = self._model.predict(images, batch_size=TEST_BATCH, verbose=0)
        return float((answers.argmax(axis=-1) == data.test_labels).mean())


class StretchProcess(PlanProcess[TrainingPlan]):
    """A `StretchWorker` in a process of its own, which stands still between requests."""

    @classmethod
    def start(cls, plan: TrainingPlan, net: str) -> "StretchProcess":
        """Start it, and build the net there."""
        environment = plan.environment | {"PYTHONPATH": str(ROOT)}
        process = cls(plan, Child(module="benchmarks.time_to_accuracy", environment=environment, deadline=DEADLINE))
        process.ask("open", plan=plan.model_dump_json(), model=net, data=DATA)
        process.host.rest()
        return process

    def awake(self, *requests: str, **arguments: Any) -> list[Any]:
        """The answers to requests, one after the other."""
        self.host.wake()
        answers = [self.ask(request, **arguments) for request in requests]
        self.host.rest()
        return answers


class Point(NamedTuple):
    """How often a net is right after how much training."""

    seconds: float
    images: int
    accuracy: float


Curves = dict[str, list[Point]]
"""Way -> points in the order of time, the first of an untrained net."""


def tuned_plan(net: str, batch_size: int) -> TrainingPlan:
    """What `tfperf tune --train` finds here."""
    from tfperf import tune_training
    from tfperf.report.training import answer

    console.print(f"tuning how {net} is trained; minutes", style="dim", markup=False)
    found = tune_training(net, DATA, batch_size=batch_size)
    console.print(answer(found.outcome), markup=False)
    return found.outcome.best.plan if found.outcome.best else TrainingPlan(batch_size=batch_size)


def race(ways: dict[str, StretchProcess], seed: int, target: float, stretch: int, most_images: int) -> Curves:
    """Train in turns until each has reached the target, or has seen the most images."""
    curves: Curves = {}
    for way, process in ways.items():
        *_, accuracy = process.awake("begin", seed=seed, stretch=stretch) + process.awake("accuracy")
        curves[way] = [Point(0.0, 0, accuracy)]
    while running := [way for way in ways if not ended(curves[way], target, most_images)]:
        for way in running:
            seconds, accuracy = ways[way].awake("stretch", "accuracy")
            before = curves[way][-1]
            curves[way].append(Point(before.seconds + seconds, before.images + stretch, accuracy))
            point = curves[way][-1]
            words = f"seed {seed}, {way}: {point.images} images, {point.seconds:.1f} s, {point.accuracy:.1%}"
            console.print(words, style="dim", markup=False)
        ways = dict(reversed(ways.items()))
    return curves


def ended(curve: list[Point], target: float, most_images: int) -> bool:
    """Whether a net need not be trained further."""
    return curve[-1].accuracy >= target or curve[-1].images >= most_images


def main(
    net: Annotated[str, typer.Option(help="One of get_net's.")] = "resnet18",
    target: Annotated[float, typer.Option(help="Accuracy on the test images.", min=0.0, max=1.0)] = 0.9,
    seeds: Annotated[int, typer.Option(help="How often, each time with other weights.", min=1)] = 3,
    batch_size: Annotated[int, typer.Option(min=1)] = 64,
    stretch: Annotated[int, typer.Option(help="Images between two tests.", min=1, max=60_000)] = 6400,
    most_images: Annotated[int, typer.Option(help="Then a net has failed.", min=1)] = 600_000,
    json_path: Annotated[Path | None, typer.Option("--json", help="Keep the curves; go on with them.")] = None,
    plot: Annotated[Path, typer.Option(help="Where the picture goes.")] = Path("results/time_to_accuracy.png"),
) -> None:
    """Race to the target."""
    load_tensorflow()
    races = json.loads(json_path.read_text(encoding="utf-8")) if json_path and json_path.exists() else {}
    race_kept = races.setdefault(json.dumps([net, batch_size, target, stretch, most_images]), {"seeds": {}})
    if "plan" not in race_kept:
        race_kept["plan"] = tuned_plan(net, batch_size).model_dump()
        keep(races, json_path)
    plans = {
        "Keras's fit": TrainingPlan(batch_size=batch_size),
        "tuned": TrainingPlan.model_validate_json(json.dumps(race_kept["plan"])),
    }
    console.print(f"tuned: {plans['tuned']}", markup=False)
    missing = [seed for seed in range(seeds) if str(seed) not in race_kept["seeds"]]
    with contextlib.ExitStack() as stack:
        ways = {way: stack.enter_context(StretchProcess.start(plan, net)) for way, plan in plans.items() if missing}
        for seed in missing:
            race_kept["seeds"][str(seed)] = race(ways, seed, target, stretch, most_images)
            keep(races, json_path)
    found = {seed: points_of(race_kept["seeds"][str(seed)]) for seed in range(seeds)}
    draw(plot, found, f"{net} on {DATA}", target)
    raise typer.Exit(0 if told(found, target) else 1)


def keep(races: dict[str, Any], path: Path | None) -> None:
    """Write what a second run need not do again."""
    if path:
        with writing_whole(path) as file:
            file.write(json.dumps(races, indent=1).encode())


def points_of(kept: dict[str, list[list[float]]]) -> Curves:
    """The curves that a file has, or that were just found."""
    return {way: [Point(*one) for one in curve] for way, curve in kept.items()}  # type: ignore[arg-type]


def told(found: dict[int, Curves], target: float) -> bool:
    """Say how long each took; whether the tuned one is faster."""
    ratios = []
    for seed, curves in sorted(found.items()):
        last = {way: curve[-1] for way, curve in curves.items()}
        default, fast = last.values()
        ratios.append(default.seconds / fast.seconds if min(default.accuracy, fast.accuracy) >= target else 0.0)
        each = [
            f"{way} {format_seconds(end.seconds)} ({end.images} images, {end.accuracy:.1%})"
            for way, end in last.items()
        ]
        console.print(f"seed {seed}: {', '.join(each)}: {ratios[-1]:.2f}x", markup=False)
    if not all(ratios):
        console.print(f"not all reached {target:.0%}")
        return False
    mean = float(np.exp(np.mean(np.log(ratios))))
    console.print(f"to {target:.0%}, geometric mean of {len(ratios)} seeds: tuned is {mean:.2f}x as fast")
    return mean > 1


def draw(path: Path, found: dict[int, Curves], what: str, target: float) -> None:
    """Draw accuracy by time of training."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for number, (_, curves) in enumerate(sorted(found.items())):
        for (way, curve), hue in zip(curves.items(), ("tab:gray", "tab:blue"), strict=True):
            points = curve[1:]
            seconds, accuracies = [one.seconds for one in points], [100 * one.accuracy for one in points]
            axes.plot(seconds, accuracies, color=hue, marker=".", label=None if number else way)
    axes.axhline(100 * target, color="black", linewidth=0.8, linestyle=":")
    axes.set(title=f"{what}: {len(found)} seeds", xlabel="seconds of training", ylabel="% right of the test images")
    axes.legend(loc="lower right", frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    console.print(f"picture: {path}", markup=False)


if __name__ == "__main__":
    if __spec__ is None:
        typer.run(main)
    else:  # by `-m`, as `StretchProcess` starts it
        serve(StretchWorker())
