"""The words and figures that every form of a tuning's report shares."""

import math
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfperf.engines.catalog import ENGINES
from tfperf.measure.words import format_bytes, format_interval, format_ratio, format_seconds, plain_ratio
from tfperf.report.tuning_facts import Facts
from tfperf.search.options import OPTIONS
from tfperf.search.outcome import FROM_PYTHON, INPUTS_FILE, MODEL_FROM_PYTHON, Outcome
from tfperf.search.question import MEMORY_SHARE, TOLERANCE_WORDS, Objective, Question
from tfperf.trials.trial import Status, Trial

__all__ = [
    "TrialFigures",
    "asked_rows",
    "commands",
    "error_words",
    "figures_of",
    "merit_words",
    "percent_words",
    "speed_up_words",
    "statuses_words",
    "tolerance_words",
    "trust_words",
]

ALWAYS_SAID = ("objectives", "batches", "threads")
"""Fields of the question that the commands name, even if they are as usual."""

UNITS: dict[str, Callable[[float], str]] = {
    "accuracy_drop": lambda share: f"{share * 100:g} %",
    "latency_limit": format_seconds,
    "memory_limit": format_bytes,
    "trial_seconds": format_seconds,
    "time_limit": format_seconds,
}
"""Field of the question -> its words; the others are plain numbers."""


class TrialFigures(NamedTuple):
    """A trial's figures, in words; "-" where there is none."""

    label: str
    role: str
    ran: bool
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


def figures_of(facts: Facts, trial: Trial) -> TrialFigures:
    """A trial's figures in words."""
    interval, agreement, rate = facts.interval(trial), trial.agreement, facts.merit(trial, "throughput")
    return TrialFigures(
        label=facts.label(trial),
        role=_role(facts, trial),
        ran=interval is not None,
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
    limit = f"Answers pass with an error of at most {asked.tolerance:.1g}"
    if asked.accuracy_drop is not None:
        limit = f"Answers pass if they lose at most {asked.accuracy_drop * 100:g} % of accuracy"
    top1 = " and with the same largest answer in every row" * asked.same_top1
    return f"{limit}{top1}. The error is {TOLERANCE_WORDS}."


def trust_words(facts: Facts) -> str:
    """What the speed-ups are measured against, and how far they can be trusted."""
    words = (
        [f"Speed-ups are against {facts.default_name(facts.baseline)}, with 99 % intervals."] if facts.baseline else []
    )
    if facts.outcome.confirmation is not None:
        again = "; ".join(facts.label(facts.trials[one.name]) for one in facts.outcome.confirmation.measurements)
        words.append(f"Measured again, each in a fresh process: {again}.")
    elif facts.best is not None:
        words.append("Not confirmed: the best was not measured again in a fresh process.")
    if any(facts.baseline and facts.only_apart(facts.baseline, trial) for trial in facts.finalists):
        words.append("'About' marks a speed-up of two that were measured separately, not side by side.")
    return " ".join(words)


def statuses_words(trials: Sequence[Trial]) -> str:
    """How many trials there are of each status: "12 ran, 2 crashed"."""
    counts = Counter(trial.status for trial in trials)
    return ", ".join(f"{counts[status]} {status}" for status in Status if counts[status])


def commands(facts: Facts) -> list[tuple[str, str]]:
    """What each does, and the command or the Python: the best alone, and the whole search."""
    outcome, from_python = facts.outcome, facts.outcome.opened_as.startswith(MODEL_FROM_PYTHON)
    model_words = ", in Python, where `net` is your model" if from_python else ""
    if not from_python and outcome.inputs == FROM_PYTHON:
        model_words = f"; {INPUTS_FILE} has your inputs by their names"
    alone = [(f"The best alone{model_words}", facts.best.command)] if facts.best and facts.best.command else []
    arrays = [name for name in ("inputs", "labels") if getattr(outcome, name) == FROM_PYTHON]
    if not from_python and not arrays:
        return [*alone, ("The search again", _search_command(outcome))]
    names = [f"`{name}` are yours" for name in arrays]
    words = ", ".join(["The search again, in Python", *(["where `net` is your model"] * from_python), *names])
    return [*alone, (words, _search_call(outcome))]


def _search_command(outcome: Outcome) -> str:
    """The search again, for a shell. What is left out is the default."""
    options: dict[str, str] = {}
    for name, value in _asked(outcome).items():
        if isinstance(value, tuple):
            options[name] = ",".join(map(str, value)) or "none"
        else:
            options[name] = np.format_float_positional(value, trim="-") if isinstance(value, float) else str(value)
    words = ["tfperf", "tune", outcome.opened_as]
    for name, value in options.items():
        flag = f"--{OPTIONS[name].flag if name in OPTIONS else name}"
        if name == "same_top1":
            words.append(flag)
        else:
            words += [flag, f"{value}s" if name == "latency_limit" else value]
    return shlex.join(words)


def _search_call(outcome: Outcome) -> str:
    """The search again, for a program. What is left out is the default."""
    model = "net" if outcome.opened_as.startswith(MODEL_FROM_PYTHON) else repr(outcome.opened_as)
    words = [f"tfperf.tune({model}"]
    for name, value in _asked(outcome).items():
        if name in ("inputs", "labels"):
            words.append(f"{name}={name}")
        else:
            one = name in ("objectives", "batches", "threads") and len(value) == 1
            words.append(f"{OPTIONS[name].argument if name in OPTIONS else name}={(value[0] if one else value)!r}")
    return f"{', '.join(words)})"


def _asked(outcome: Outcome) -> dict[str, Any]:
    """Fields of the question, and other arguments of `tfperf.tune`, that are others than what it takes by itself."""
    limit = int(MEMORY_SHARE * outcome.environment.memory_bytes)
    usual = {name: field.default for name, field in Question.model_fields.items() if name not in ALWAYS_SAID}
    usual |= {"engines": tuple(engine.name for engine in ENGINES), "memory_limit": limit, "seed": 0}
    labelled = outcome.question.accuracy_drop is not None  # and a file of an earlier tfperf does not say what with
    arguments = {
        "inputs": outcome.inputs or (INPUTS_FILE if labelled else None),
        "labels": outcome.labels or ("LABELS.npz" if labelled else None),
        **dict(outcome.question),
        "signature": outcome.signature,
        "seed": outcome.seed,
    }
    return {name: value for name, value in arguments.items() if value is not None and value != usual.get(name)}


def asked_rows(outcome: Outcome) -> list[tuple[str, str]]:
    """What was searched for and among what, and how it went: a name and words for each part."""
    rows = {
        "model": outcome.opened_as,
        **({"signature": outcome.signature} if outcome.signature else {}),
        "inputs": outcome.inputs or "random",
        **({"labels": outcome.labels} if outcome.labels else {}),
        "seed": str(outcome.seed),
        **{name.replace("_", " "): _value_words(name, value) for name, value in outcome.question},
        "searched for": format_seconds(outcome.seconds),
        "ended": outcome.ended,
        "trials": statuses_words(outcome.trials) or "none",
    }
    return list(rows.items())


def _value_words(name: str, value: Any) -> str:
    """What was asked in a field of the question."""
    if value is None or value == ():
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        words = ", ".join(map(str, value))
        return words.replace("_", " ") if name == "transformations" else words
    return UNITS.get(name, "{:g}".format)(value)
