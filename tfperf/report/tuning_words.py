"""The words and figures that every form of a tuning's report shares."""

import math
import shlex
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from tfperf.engines.catalog import ENGINES
from tfperf.engines.plan import PRECISIONS, TRANSFORMATIONS
from tfperf.engines.trial import Status, Trial
from tfperf.measure import Environment
from tfperf.measure.words import format_bytes, format_interval, format_ratio, format_seconds, plain_ratio
from tfperf.report.tuning_facts import Facts
from tfperf.search.outcome import Outcome
from tfperf.search.question import TOLERANCE_WORDS, Objective, Question

__all__ = [
    "Row",
    "asked_rows",
    "commands",
    "environment_rows",
    "error_words",
    "merit_words",
    "percent_words",
    "row",
    "speed_up_words",
    "statuses_words",
    "tolerance_words",
    "trust_words",
]


class Row(NamedTuple):
    """A trial's figures, in words; "-" where there is none."""

    label: str
    role: str
    latency: str
    rate: str
    speed_up: str
    error: str
    top1: str
    accuracy: str
    size: str
    memory: str
    first_call: str
    trial: Trial


def row(facts: Facts, trial: Trial) -> Row:
    """A trial's figures in words."""
    interval, agreement, rate = facts.interval(trial), trial.agreement, facts.merit(trial, "throughput")
    return Row(
        label=facts.label(trial),
        role=_role(facts, trial),
        latency=format_interval(interval) if interval else "-",
        rate=f"{rate:,.0f}" if rate else "-",
        speed_up=speed_up_words(facts, facts.baseline, trial) if facts.baseline and interval else "-",
        error=error_words(agreement.relative_error) if agreement else "-",
        top1=percent_words(agreement.same_top1_share if agreement else None),
        accuracy=percent_words(trial.accuracy),
        size="-" if trial.size is None else format_bytes(trial.size),
        memory="-" if trial.memory is None else format_bytes(trial.memory),
        first_call="-" if trial.first_call_seconds is None else format_seconds(trial.first_call_seconds),
        trial=trial,
    )


def _role(facts: Facts, trial: Trial) -> str:
    roles = {
        "best": trial is facts.best,
        "as good": trial.name in facts.outcome.equals,
        "yours": trial.name in facts.outcome.defaults,
    }
    return ", ".join(words for words, holds in roles.items() if holds)


def merit_words(facts: Facts, trial: Trial, objective: Objective) -> str:
    """What an objective looks at, in words: "8.4 us a call"."""
    value = facts.merit(trial, objective)
    if value is None:
        return "nothing on disk" if objective == "size" else "not measured"
    if objective == "latency":
        return f"{format_seconds(value)} a call"
    if objective == "throughput":
        return f"{value:,.0f} examples/s"
    return f"{format_bytes(value)} {'on disk' if objective == 'size' else 'of memory'}"


def speed_up_words(facts: Facts, default: Trial, trial: Trial) -> str:
    """A trial's speed-up over a default; "about" that much, without an interval, where they did not take turns."""
    if default is trial:
        return "1"
    if ratio := facts.side_by_side(default, trial):
        return format_ratio(ratio.interval)
    apart = facts.separate_looks(default, trial)
    return f"about {plain_ratio(apart)}x" if apart else "-"


def error_words(error: float | None) -> str:
    """A relative error with one digit, never less than it is; None: an answer is not a finite number."""
    if error is None:
        return "not finite"
    if error == 0:
        return "0"
    size = 10.0 ** math.floor(math.log10(error))
    return f"{math.ceil(error / size - 1e-9) * size:.1g}"


def percent_words(share: float | None) -> str:
    """A share to a hundredth of a percent, never more than it is: "99.97 %"."""
    return "-" if share is None else f"{math.floor(share * 1e4 + 1e-6) / 100:g} %"


def tolerance_words(outcome: Outcome) -> str:
    """What passes, and what the error is."""
    asked = outcome.question
    limit = f"Answers pass up to an error of {asked.tolerance:.1g}"
    if asked.accuracy_drop is not None:
        limit = f"Answers pass that lose at most {asked.accuracy_drop * 100:g} % of accuracy"
    top1 = " and with the same largest answer in every row" * asked.same_top1
    return f"{limit}{top1}. The error: {TOLERANCE_WORDS}."


def trust_words(facts: Facts) -> str:
    """What the speed-ups are told against, and how far they can be trusted."""
    words = [f"Speed-ups are of {facts.default_name(facts.baseline)}, with 99 % intervals."] if facts.baseline else []
    if facts.outcome.confirmation is not None:
        again = "; ".join(facts.label(facts.trials[one.name]) for one in facts.outcome.confirmation.measurements)
        words.append(f"Measured again, each in a fresh process: {again}.")
    elif facts.best is not None:
        words.append("Not confirmed: the best was not measured again in a fresh process.")
    if any(row(facts, trial).speed_up.startswith("about") for trial in facts.finalists):
        words.append("'About': from separate looks, not side by side.")
    return " ".join(words)


def statuses_words(trials: Sequence[Trial]) -> str:
    """How many trials there are of each status: "12 ran, 2 crashed"."""
    counts = Counter(trial.status for trial in trials)
    return ", ".join(f"{counts[status]} {status}" for status in Status if counts[status])


def commands(facts: Facts) -> list[tuple[str, str]]:
    """What each does, and the command: the best alone, and the whole search."""
    alone = [("the best alone", facts.best.command)] if facts.best and facts.best.command else []
    return [*alone, ("the search again", _search_again(facts.outcome))]


def _search_again(outcome: Outcome) -> str:
    """For the command line; for Python, where a program handed the model over. What is left out is the default."""
    asked = outcome.question
    usual = {
        "engine": tuple(engine.name for engine in ENGINES),
        "precision": PRECISIONS,
        "transform": TRANSFORMATIONS,
        "tolerance": (Question.model_fields["tolerance"].default,),
    }
    options: dict[str, tuple[object, ...]] = {
        "objective": asked.objectives,
        "batch": asked.batches,
        "threads": asked.threads,
        "engine": asked.engines,
        "precision": asked.precisions,
        "transform": asked.transformations,
        "tolerance": (asked.tolerance,),
    }
    told = {name: values for name, values in options.items() if values != usual.get(name)}
    if outcome.opened_as.startswith("keras.Model "):
        plural = {"engine": "engines", "precision": "precisions", "transform": "transformations"}
        words = [
            f"{plural.get(name, name)}={values[0] if name == 'tolerance' else values!r}"
            for name, values in told.items()
        ]
        return f"tfperf.tune(net, {', '.join(words)})"
    flags = [word for name, values in told.items() for word in (f"--{name}", ",".join(map(str, values)) or "none")]
    if asked.same_top1:
        flags.append("--same-top1")
    if asked.latency_limit is not None:
        flags += ["--latency-limit", f"{asked.latency_limit}s"]
    if asked.accuracy_drop is not None:
        flags += ["--inputs", "INPUTS.npz", "--labels", "LABELS.npz", "--accuracy-drop", str(asked.accuracy_drop)]
    return shlex.join(["tfperf", "tune", outcome.opened_as, *flags])


def asked_rows(outcome: Outcome) -> list[tuple[str, str]]:
    """What was searched for and among what, and how it went: a name and words for each part."""
    asked = outcome.question
    rows = {
        "objectives": ", ".join(asked.objectives),
        "batches": ", ".join(map(str, asked.batches)),
        "threads": ", ".join(map(str, asked.threads)),
        "engines": ", ".join(asked.engines),
        "precisions": ", ".join(asked.precisions),
        "transformations": ", ".join(asked.transformations).replace("_", " ") or "none",
        "latency limit": format_seconds(asked.latency_limit) if asked.latency_limit else "none",
        "memory limit": format_bytes(asked.memory_limit),
        "time limit": format_seconds(asked.time_limit) if asked.time_limit else "none",
        "searched for": format_seconds(outcome.seconds),
        "ended": outcome.ended,
        "trials": statuses_words(outcome.trials) or "none",
    }
    return list(rows.items())


def environment_rows(environment: Environment) -> list[tuple[str, str]]:
    """The machine and the software: a name and words for each part."""
    values = environment.model_dump(exclude={"packages", "variables"})
    values["cpu_features"] = " ".join(environment.cpu_features)
    values["accelerators"] = ", ".join(environment.accelerators) or "none seen"
    values["memory_bytes"] = format_bytes(environment.memory_bytes)
    machine = {name.removesuffix("_bytes").replace("_", " "): value for name, value in values.items()}
    rows = {**machine, **environment.packages, **environment.variables}
    return [(name, "unknown" if value is None else str(value)) for name, value in rows.items()]
