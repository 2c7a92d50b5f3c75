"""Does a `tfperf tune` that is killed go on where it was, and come to the same end?

    python benchmarks/killed.py                                # mlp, killed 20 times: about 6 minutes
    python benchmarks/killed.py mine.py:build --times 5 --seed 1 --json figures.json

SIGKILL at a random moment, and the same command again, 20 times: what was finished must not run again, and a few
seconds later no process of a killed search may be left. A search that comes to its end before is begun anew; the last
is left to end. Then comes one that nobody kills, and what the two chose is measured in turns, a few times in fresh
processes.

Exit code 0: nothing ran twice, nothing was left, and neither choice is slower by more than 3 %. 1: not so.
"""
# ruff: noqa: E402 - the path must be cleaned before anything is imported

import contextlib
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import geometric_mean
from typing import Annotated, Any

HERE = Path(__file__).resolve().parent
sys.path[:] = [folder for folder in sys.path if Path(folder).resolve() != HERE]
sys.path.append(str(HERE.parent))  # else the names of files here would hide libraries

import psutil
import typer
from rich.console import Console

from benchmarks.tune import APART_ROUNDS, MOST_WORSE, NETS, apart, keep
from tfperf.measure.results import read_document
from tfperf.measure.words import format_seconds
from tfperf.search.outcome import Outcome

MOST_FINISHED = 2
"""Trials or rounds that a search finishes, at most, before it is killed: so 20 kills are spread over all of it."""

MOST_SECONDS = 3.0
"""That it goes on after these, at most: starting and measuring take seconds."""

GRACE = 5.0
"""Seconds that the processes of a killed search have to end."""

DEADLINE = 600.0
"""Seconds without a trial or round finished, after which a search is held to hang."""

console = Console(highlight=False)


class Search:
    """A `tfperf tune` that can be killed and begun again, with a cache of its own."""

    def __init__(self, model: str, tolerance: float, place: Path) -> None:
        self._place, self._result = place, place.with_suffix(".json")
        self._command = [sys.executable, "-m", "tfperf", "tune", model, "--tolerance", str(tolerance)]
        self._command += ["--json", str(self._result)]
        self._finished: dict[Path, int] = {}
        self.ran_twice: set[str] = set()

    def goes_on(self, chance: random.Random) -> bool:
        """Begin again, and kill it after a while; False: it ended before."""
        finishing, seconds = chance.randint(1, MOST_FINISHED), chance.uniform(0, MOST_SECONDS)
        before = len(self._finished)
        with self._begun() as process:
            while len(self._finished) < before + finishing and process.poll() is None:
                self._look()
            until = time.monotonic() + seconds
            while time.monotonic() < until and process.poll() is None:
                self._look()
            if process.poll() is not None:
                self._check(process)
                return False
        return True

    def ends(self) -> Outcome:
        """Begin again, and leave it to end."""
        with self._begun() as process:
            while process.poll() is None:
                self._look()
            self._check(process)
        return read_document(self._result, Outcome)

    @property
    def count(self) -> int:
        """The number of trials and rounds that are finished."""
        return len(self._finished)

    def end_what_is_left(self) -> list[str]:
        """The names of processes that are left of it, and their end."""
        left = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("TFPERF_CACHE") == str(self._place):
                    left.append(f"{process.name()} ({process.status()})")
                    process.kill()
        return left

    @contextlib.contextmanager
    def _begun(self) -> Iterator[subprocess.Popen[bytes]]:
        """The search; SIGKILL at the end of the `with` block, if it runs then."""
        self._moved = time.monotonic()
        environment = os.environ | {"TFPERF_CACHE": str(self._place)}
        with subprocess.Popen(self._command, env=environment, stdout=subprocess.DEVNULL) as process:
            try:
                yield process
            finally:
                process.kill()

    def _look(self) -> None:
        """What is finished now; a file that was written again is of something that ran twice."""
        time.sleep(0.02)
        for file in (self._place / "tune").rglob("*.json"):
            try:
                when = file.stat().st_mtime_ns
            except FileNotFoundError:  # the search has ended, and forgets
                continue
            if file not in self._finished:
                self._moved = time.monotonic()
            if self._finished.setdefault(file, when) != when:
                self.ran_twice.add(file.stem)
        if time.monotonic() - self._moved > DEADLINE:
            raise TimeoutError(f"nothing was finished for {DEADLINE:.0f} s")

    def _check(self, process: subprocess.Popen[bytes]) -> None:
        self._finished.clear()
        if process.returncode:
            raise RuntimeError(f"tfperf tune ended with exit code {process.returncode}")


def main(
    model: Annotated[str, typer.Argument(help="Any MODEL of `tfperf tune`.")] = "mlp",
    times: Annotated[int, typer.Option(min=1, help="Kills.")] = 20,
    tolerance: Annotated[float, typer.Option(help="2e-2 admits bfloat16 and int8, the whole space.")] = 2e-2,
    seed: Annotated[int, typer.Option(help="Of the moments.")] = 0,
    json_path: Annotated[Path | None, typer.Option("--json", help="Keep the figures.")] = None,
) -> None:
    """Kill a search again and again."""
    model, chance = NETS.get(model, model), random.Random(seed)
    with tempfile.TemporaryDirectory() as place:
        killed = Search(model, tolerance, Path(place, "killed"))
        ended, left = 0, list[str]()
        for kill in range(1, times + 1):
            while not killed.goes_on(chance):
                ended += 1
            time.sleep(GRACE)
            left += killed.end_what_is_left()
            console.print(
                f"kill {kill}: {killed.count} finished, {len(killed.ran_twice)} ran twice, left: {left}", markup=False
            )
        outcomes = [killed.ends(), Search(model, tolerance, Path(place, "alone")).ends()]
        plans = list(dict.fromkeys(outcome.best.plan for outcome in outcomes))
        cache = Path(place, "apart")
        rounds = [apart(model, plans, outcomes[0].question, cache) for _ in range(APART_ROUNDS)]
    costs = {str(plan): geometric_mean(one[plan] for one in rounds) for plan in plans}
    worse = max(costs.values()) / min(costs.values()) - 1
    holds = not killed.ran_twice and not left and worse <= MOST_WORSE
    chose = " and ".join(f"{plan} ({format_seconds(cost)})" for plan, cost in costs.items())
    console.print(
        f"{model}, killed {times} times over {ended + 1} searches: {len(killed.ran_twice)} ran twice, {len(left)} "
        f"processes left; chose {chose}, {worse:.1%} apart: {'holds' if holds else 'DOES NOT HOLD'}",
        markup=False,
    )
    figures: dict[str, Any] = {
        "ran_twice": sorted(killed.ran_twice),
        "left": left,
        "searches": ended + 1,
        "costs": costs,
        "worse": worse,
    }
    keep(json_path, figures)
    raise typer.Exit(0 if holds else 1)


if __name__ == "__main__":
    typer.run(main)
