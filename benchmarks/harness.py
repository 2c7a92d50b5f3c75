"""How honest is tfperf.measure on this machine? The benchmark of the benchmark.

    python benchmarks/harness.py            # the whole, about 30 minutes; leave the machine alone meanwhile
    python benchmarks/harness.py --quick    # a tenth of it
    python benchmarks/harness.py --json figures.json

It checks that

- (a) a function compared with itself is hardly ever called faster or slower,
- (b) work made 5 % larger is called slower, and so is 2 % on recorded noise,
- (c) the harness adds next to nothing to each call,
- (d) deliberate mistakes in the measuring code are caught by the tests.

Exit code 0: all of it holds. 1: some of it does not, or the run was interrupted (Ctrl-C shows what there is so far).
"""

import itertools
import json
import math
import os
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tfperf.files import writing_whole
from tfperf.measure import Benchmark, Comparison, Environment, compare
from tfperf.measure.environment import Watch

SELF_COMPARISONS = 400
MOST_FALSE_VERDICTS = 0.03  # share of the comparisons of a function with itself: 12 of 400
KINDS = ("NumPy", "Python", "NumPy", "Python", "tf.function")  # what is compared with itself, in turn
POWER_TRIES = 50
LEAST_POWER = 0.90
POWER_TIME_LIMIT = 20.0  # seconds for each try
LARGER = 1.05  # work on this machine
SLIGHTLY_LARGER = 1.02  # work on recorded noise
REPLAYED_WORK_SECONDS = 0.005
COST_ROUNDS = 40
MOST_COST_SECONDS = 0.1e-6  # of a call, added by the harness
QUICK_SHARE = 0.1

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests" / "measure"

console = Console()


class Check(NamedTuple):
    """One promise, the figure it is held against, and the figure seen."""

    promise: str
    limit: str
    seen: str
    passed: bool
    details: dict[str, Any]


# ---------------------------------------------------------------- (a) a function with itself


def numpy_work() -> Callable[[], object]:
    """About 50 us of NumPy."""
    values = np.linspace(0.0, 1.0, 5000)
    return lambda: np.tanh(values)


def python_work() -> Callable[[], object]:
    """About 100 us of Python."""
    numbers = list(range(2000))
    return lambda: sum(number * number for number in numbers)


def tensorflow_work() -> Callable[[], object]:
    """A net of this project, as a graph, on one batch."""
    import tensorflow as tf

    from tfperf.nets import get_net

    net = get_net("lenet")
    graph = tf.function(net)
    images = tf.random.stateless_uniform((32, *net.input_shape[1:]), seed=(1, 2))  # (batch, height, width, channels)
    return lambda: graph(images)


def self_comparisons(tries: int, advance: Callable[[], None]) -> Iterator[Check]:
    """Compare a function with itself, and count what is found different. Yields the state after each try."""
    makers = {"NumPy": numpy_work, "Python": python_work, "tf.function": tensorflow_work}
    works: dict[str, Callable[[], object]] = {}
    verdicts: dict[str, Counter[str]] = {kind: Counter() for kind in makers}
    seconds: dict[str, list[float]] = {kind: [] for kind in makers}
    for kind in itertools.islice(itertools.cycle(KINDS), tries):
        if kind not in works:
            works[kind] = makers[kind]()
        start = time.perf_counter()
        comparison = compare({"first": works[kind], "second": works[kind]})
        seconds[kind].append(time.perf_counter() - start)
        verdicts[kind][verdict_of(comparison)] += 1
        advance()
        total = sum(verdicts.values(), Counter())
        false = total["faster"] + total["slower"]
        done = total.total()
        most = math.floor(MOST_FALSE_VERDICTS * done)
        durations = list(itertools.chain(*seconds.values()))
        # By kind too: many quiet comparisons must not hide a few loud ones.
        by_kind = ", ".join(f"{k} {c['faster'] + c['slower']} of {c.total()}" for k, c in verdicts.items() if c)
        yield Check(
            f"(a) {done} comparisons of a function with itself: found different",
            f"at most {most}",
            f"{false} ({by_kind}); {total['no difference']} no difference, {total['too noisy to say']} too noisy; "
            f"median {statistics.median(durations):.1f} s",
            false <= most and done == tries,
            {
                "verdicts": {kind: dict(counter) for kind, counter in verdicts.items()},
                "median_seconds": {kind: statistics.median(values) for kind, values in seconds.items() if values},
                "tries": done,
            },
        )


def verdict_of(comparison: Comparison) -> str:
    return comparison.ratios[0].verdict.value


# ---------------------------------------------------------------- (b) power


def repeated(times: int) -> Callable[[], None]:
    """So many repetitions of a fixed piece of work, about 10 us each."""
    values = np.linspace(0.0, 1.0, 1000)

    def work() -> None:
        for _ in range(times):
            np.tanh(values)

    return work


def power_here(tries: int, advance: Callable[[], None]) -> Iterator[Check]:
    """Compare work with exactly 5 % more of the same. Yields the state after each try."""
    base = 100
    candidates = {"base": repeated(base), "larger": repeated(round(base * LARGER))}
    verdicts: Counter[str] = Counter()
    seconds, ratios = [], []
    for _ in range(tries):
        start = time.perf_counter()
        comparison = compare(candidates, time_limit=POWER_TIME_LIMIT)
        seconds.append(time.perf_counter() - start)
        ratios.append(comparison.ratios[0].estimate)
        verdicts[verdict_of(comparison)] += 1
        advance()
        done, needed = len(seconds), math.ceil(LEAST_POWER * len(seconds))
        yield Check(
            f"(b) {done} tries with {LARGER - 1:.0%} more work: called slower",
            f"at least {needed}",
            f"{verdicts['slower']}; longest {max(seconds):.1f} s; median ratio {statistics.median(ratios):.4f}",
            verdicts["slower"] >= needed and done == tries,
            {"verdicts": dict(verdicts), "seconds": seconds, "ratios": ratios},
        )


def power_replayed(tries: int, advance: Callable[[], None], machines: ModuleType) -> Iterator[Check]:
    """Compare work with 2 % more, with the noise recorded on a real machine. Yields the state after each try."""
    verdicts: dict[str, Counter[str]] = {trace: Counter() for trace in machines.TRACES}
    for attempt, trace in itertools.product(range(tries), machines.TRACES):
        machine = machines.FakeMachine.replaying(trace, start=attempt / tries)
        work = machine.work(REPLAYED_WORK_SECONDS)
        larger = machine.work(REPLAYED_WORK_SECONDS * SLIGHTLY_LARGER)
        comparison = compare(
            {"base": work, "larger": larger},
            time_limit=POWER_TIME_LIMIT,
            clock=machine.clock,
            synchronize=machines.nothing,
            seed=attempt,
        )
        verdicts[trace][verdict_of(comparison)] += 1
        if trace != machines.TRACES[-1]:
            continue
        advance()
        done, needed = attempt + 1, math.ceil(LEAST_POWER * (attempt + 1))
        slower = {trace: counter["slower"] for trace, counter in verdicts.items()}
        yield Check(
            f"(b) {done} tries with {SLIGHTLY_LARGER - 1:.0%} more work on each recorded noise: called slower",
            f"at least {needed}",
            ", ".join(f"{trace.replace('_', ' ')} {count}" for trace, count in slower.items()),
            min(slower.values()) >= needed and done == tries,
            {"verdicts": {trace: dict(counter) for trace, counter in verdicts.items()}},
        )


# ---------------------------------------------------------------- (c) cost


def empty(*_: object) -> None:
    """Do nothing, so that what is measured is the harness."""


def tight_loop(calls: int) -> float:
    """Seconds per call of the loop one would write by hand."""
    start = time.perf_counter()
    for _ in itertools.repeat(None, calls):
        empty()
    return (time.perf_counter() - start) / calls


def cost_of_a_call(rounds: int, advance: Callable[[], None]) -> Iterator[Check]:
    """Measure an empty function, and loop over it by hand, in turn. Yields the state after each round."""
    differences = []
    for _ in range(rounds):
        measurement = Benchmark("empty", time_limit=1.0).measure(empty)
        calls = measurement.calls_per_sample
        by_hand = statistics.median(tight_loop(calls) for _ in range(len(measurement.seconds)))
        differences.append(measurement.median - by_hand)
        advance()
        cost = statistics.median(differences)
        yield Check(
            f"(c) cost of the harness for each call, amortised, {len(differences)} rounds",
            f"at most {MOST_COST_SECONDS * 1e6:.1f} us",
            f"{cost * 1e6:.3f} us; from {min(differences) * 1e6:.3f} to {max(differences) * 1e6:.3f} us",
            cost <= MOST_COST_SECONDS and len(differences) == rounds,
            {"differences_seconds": differences},
        )


# ---------------------------------------------------------------- (d) mutants


def mutants_caught(mutants: ModuleType, advance: Callable[[], None]) -> Iterator[Check]:
    """Run, against each wrong version of the code, the test that must notice. Yields the state after each."""
    caught: dict[str, list[str]] = {}
    for name, mutant in mutants.MUTANTS.items():
        # A test that fails on the code as it is catches nothing.
        fails_anyway = failed_tests(mutant.caught_by, {})
        caught[name] = [] if fails_anyway else failed_tests(mutant.caught_by, {mutants.VARIABLE: name})
        advance()
        missed = [name for name, tests in caught.items() if not tests]
        yield Check(
            f"(d) {len(caught)} mistakes put into the code: missed by the tests",
            "none",
            ", ".join(missed) or "none",
            not missed and len(caught) == len(mutants.MUTANTS),
            {"caught_by": caught},
        )


def failed_tests(test: str, variables: dict[str, str]) -> list[str]:
    """The names of the tests that fail."""
    command = [sys.executable, "-m", "pytest", "-q", "-rf", "-p", "no:cacheprovider", str(TESTS / test)]
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):  # 0: all passed, 1: some failed; the rest: they did not run
        raise RuntimeError(f"expected the tests {test} to run: {done.stdout[-500:]} {done.stderr[-500:]}")
    return sorted(set(re.findall(r"^FAILED \S*?(\w+\.py::\w+)", done.stdout, re.MULTILINE)))


# ---------------------------------------------------------------- the whole


def main(
    quick: Annotated[bool, typer.Option("--quick", help="A tenth of the tries.")] = False,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write the figures here too.")] = None,
) -> None:
    """Check the honesty of tfperf.measure on this machine."""
    share = QUICK_SHARE if quick else 1.0
    sys.path.insert(0, str(ROOT))  # a script's own folder is there, the checkout is not
    from tests.measure import fake_machine, mutants

    self_tries, power_tries = round(SELF_COMPARISONS * share), round(POWER_TRIES * share)
    cost_rounds = round(COST_ROUNDS * share)
    environment, watch = Environment.here(), Watch()
    checks: dict[str, Check] = {}
    interrupted = False
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        with Progress(*columns, console=console) as progress:

            def run(key: str, words: str, total: int, part: Callable[..., Iterator[Check]], *arguments: object) -> None:
                task = progress.add_task(words, total=total)
                for check in part(*arguments, advance=lambda: progress.advance(task)):
                    checks[key] = check  # the latest state, so that an interruption keeps what there is

            run("power_replayed", "(b) 2 % on recorded noise", power_tries, replayed(fake_machine), power_tries)
            run("cost", "(c) cost of a call", cost_rounds, cost_of_a_call, cost_rounds)
            run("power", "(b) 5 % here", power_tries, power_here, power_tries)
            run("self", "(a) a function with itself", self_tries, self_comparisons, self_tries)
            run("mutants", "(d) mutants", len(mutants.MUTANTS), mutants_caught, mutants)
    except KeyboardInterrupt:
        interrupted = True
    conditions = watch.conditions()
    show(checks, environment, conditions.model_dump(), interrupted)
    if json_path:
        figures = {
            "checks": {key: check._asdict() for key, check in sorted(checks.items())},
            "interrupted": interrupted,
            "quick": quick,
            "environment": environment.model_dump(),
            "conditions": conditions.model_dump(),
        }
        with writing_whole(json_path) as file:
            file.write(json.dumps(figures, indent=1).encode() + b"\n")
    raise typer.Exit(0 if not interrupted and all(check.passed for check in checks.values()) else 1)


def replayed(machines: ModuleType) -> Callable[..., Iterator[Check]]:
    """`power_replayed` on these machines."""
    return lambda tries, advance: power_replayed(tries, advance, machines)


def show(checks: dict[str, Check], environment: Environment, conditions: dict[str, float], interrupted: bool) -> None:
    """Print the table, and on what it was measured."""
    table = Table(title="Interrupted: what there is so far" if interrupted else "Honesty of tfperf.measure")
    for heading in ("promise", "limit", "seen", ""):
        table.add_column(heading, overflow="fold")
    for check in sorted(checks.values()):
        table.add_row(check.promise, check.limit, check.seen, "pass" if check.passed else "FAIL")
    console.print(table)
    if "mutants" in checks:
        for name, tests in checks["mutants"].details["caught_by"].items():
            console.print(f"  mutant '{name}': {'caught by ' + ', '.join(tests) if tests else 'MISSED'}")
    versions = ", ".join(f"{name} {version}" for name, version in environment.packages.items())
    console.print(f"{environment.cpu}, {environment.usable_cores} cores, {environment.system}")
    console.print(f"Python {environment.python}, {versions}, revision {environment.git_revision}")
    console.print(
        f"load before {conditions['load_before']:.2f}, others took {conditions['busy_elsewhere_share']:.1%} and "
        f"the hypervisor {conditions['steal_share']:.1%} of the CPU time, {conditions['seconds'] / 60:.1f} minutes"
    )


if __name__ == "__main__":
    typer.run(main)
