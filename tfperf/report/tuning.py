"""What a search found: the answer in a sentence, tables for terminals, Markdown, and CSV."""

import csv
import io
import re
from collections.abc import Iterable, Sequence

from rich.console import Group
from rich.markup import escape

from tfperf.measure import Verdict
from tfperf.measure.words import format_ratio
from tfperf.report.tables import bare_table, environment_rows, with_notes
from tfperf.report.tuning_facts import Facts
from tfperf.report.tuning_words import (
    TrialFigures,
    asked_rows,
    commands,
    error_words,
    figures_of,
    merit_words,
    percent_words,
    speed_up_words,
    statuses_words,
    tolerance_words,
    trust_words,
)
from tfperf.search.outcome import Outcome
from tfperf.trials.trial import Status, Trial

__all__ = ["answer", "csv_rows", "csv_text", "markdown", "summary_table", "trial_table"]

SUMMARY = ("", "latency [95 %]", "examples/s", "speed-up [99 %]", "error", "disk", "memory", "")
"""The columns of the finalists, in every form of the report."""

TRIALS = ("", "latency [95 %]", "examples/s", "error", "disk", "memory")
"""The columns of the trials on a terminal."""


def answer(outcome: Outcome) -> str:
    """Which plan is the best, how much faster it is than what users have, and whether it answers alike: a sentence."""
    facts = Facts(outcome)
    best, objectives = facts.best, outcome.question.objectives
    if best is None:
        return _nothing_words(outcome)
    yours = best.name in outcome.defaults
    shown = objectives if "latency" in objectives else (*objectives, "latency")
    words = [merit_words(facts, best, objective) for objective in shown]
    words += [*_gains(facts, best), *_answers_words(outcome, best)]
    if outcome.equals:
        words.append(
            f"not distinguishable from: {'; '.join(_named(facts, facts.trials[one]) for one in outcome.equals)}"
        )
    head = ": ".join(filter(None, [_standing(outcome), "what you have is the best already" if yours else ""]))
    sentence = f"{facts.label(best)}: {', '.join(words)}"
    return f"{head[0].upper()}{head[1:]}: {sentence}" if head else sentence


def _nothing_words(outcome: Outcome) -> str:
    """Why there is no winner."""
    cut = {"finished": "", "time limit": " before the time was up", "interrupted": " before it was interrupted"}
    ran = any(trial.measurement for trial in outcome.trials)
    what = "No plan that ran keeps to the limits" if ran else "No plan ran"
    became = f" ({statuses_words(outcome.trials)})" if outcome.trials else ""
    return f"{what}{cut[outcome.ended]}{became}"


def _standing(outcome: Outcome) -> str:
    """What speaks against calling the winner the best."""
    cut = {"finished": "", "time limit": "best so far, the time was up", "interrupted": "best so far, interrupted"}
    return ", ".join(filter(None, [cut[outcome.ended], "" if outcome.confirmation else "not confirmed"]))


def _gains(facts: Facts, best: Trial) -> Iterable[str]:
    """How the winner compares with what users have, the nearest in speed first."""
    others = [default for default in facts.defaults if default is not best]
    for default in sorted(others, key=lambda one: facts.separate_looks(one, best) or 0.0):
        ratio, users = facts.side_by_side(default, best), facts.default_name(default)
        if ratio is None:
            yield f"{speed_up_words(facts, default, best)} of {users} (measured separately)"
        else:
            verdict = "" if ratio.verdict is Verdict.FASTER else f" ({ratio.verdict})"
            yield f"{format_ratio(ratio.interval)} of {users}{verdict}"


def _answers_words(outcome: Outcome, best: Trial) -> Iterable[str]:
    """How far its answers are from the net's in float32."""
    if best.agreement is not None and best.agreement.relative_error is not None:
        error = best.agreement.relative_error
        alike = "same answers to" if outcome.question.accuracy_drop is None else "error"
        yield f"{alike} {error_words(error)}" if error else "the very same answers"
    if best.accuracy is not None:
        reference = outcome.reference_accuracy
        beside = f" ({percent_words(reference)} in float32)" if reference is not None else ""
        yield f"accuracy {percent_words(best.accuracy)}{beside}"


def _named(facts: Facts, trial: Trial) -> str:
    """A trial, and whether users have it already."""
    return facts.label(trial) + ", which you have" * (trial.name in facts.outcome.defaults)


def summary_table(outcome: Outcome) -> Group:
    """The finalists and the defaults, best first; below them the doubts and what the error is."""
    facts, table = Facts(outcome), bare_table(*SUMMARY)
    for trial in facts.finalists:
        table.add_row(*map(escape, _summary(figures_of(facts, trial))))
    notes = [trust_words(facts), tolerance_words(outcome)] if facts.finalists else []
    return with_notes(table, notes, facts.doubts, _less_important(outcome))


def trial_table(outcome: Outcome, limit: int | None = None) -> Group:
    """Every trial that ran, best first; below them those that did not, with what became of each and why.

    Args:
        limit: most rows, and only the number of plans that were not tried; None: all.
    """
    facts, table = Facts(outcome), bare_table(*TRIALS)
    ran = [trial for trial in facts.best_first if trial.status is Status.RAN]
    for trial in ran[:limit]:
        one = figures_of(facts, trial)
        table.add_row(*map(escape, (one.label, one.latency, one.rate, one.error, one.size, one.memory)))
    others = [trial for trial in facts.best_first if trial.status is not Status.RAN]
    told = [trial for trial in others if limit is None or trial.status is not Status.NOT_TRIED]
    notes = [f"{facts.label(trial)}: {trial.status}: {trial.reason}" for trial in told]
    left = [*([] if limit is None else ran[limit:]), *(trial for trial in others if trial not in told)]
    told_left = [f"{len(left)} more: {statuses_words(left)}"] if left else []
    return with_notes(table, [*notes, *told_left], [], _less_important(outcome))


def _less_important(outcome: Outcome) -> list[str]:
    """The columns of figures that nobody asked for, the least important first."""
    asked = {"throughput": "examples/s", "memory": "memory", "size": "disk"}
    objectives = {asked.get(objective) for objective in outcome.question.objectives}
    return [column for column in ("examples/s", "memory", "disk", "error") if column not in objectives]


def _summary(one: TrialFigures) -> tuple[str, ...]:
    return one.label, one.latency, one.rate, one.speed_up, one.error, one.size, one.memory, one.role


def markdown(outcome: Outcome) -> str:
    """The whole report as GitHub's Markdown; names and reasons are never read as markup."""
    facts = Facts(outcome)
    parts = [f"# tfperf tune: {_plain(outcome.model)}", _plain(answer(outcome)), _plain(outcome.created)]
    if facts.finalists:
        parts += [
            "## Finalists",
            _markdown_table(SUMMARY, [_summary(figures_of(facts, trial)) for trial in facts.finalists]),
        ]
        parts += [_plain(trust_words(facts)), _plain(tolerance_words(outcome))]
    if facts.doubts:
        told = [_plain(f"{whom}: {what}" if whom else what) for whom, what in facts.doubts]
        parts += ["## Doubts", "\n".join(f"- {words}" for words in told)]
    if outcome.front:
        objectives = outcome.question.objectives
        front = [facts.trials[name] for name in outcome.front]
        rows = [(facts.label(trial), *(merit_words(facts, trial, one) for one in objectives)) for trial in front]
        parts += ["## Pareto front", _markdown_table(("", *objectives), rows)]
    trials = [figures_of(facts, trial) for trial in facts.best_first]
    cells = [(one.label, one.trial.status, one.latency, one.rate, one.error, one.trial.reason) for one in trials]
    parts += [
        "## Every trial",
        _markdown_table(("", "status", "latency [95 %]", "examples/s", "error", "reason"), cells),
    ]
    parts += ["## To reproduce", *(f"{what}:\n\n{_fence(command)}" for what, command in commands(facts))]
    parts += ["## What was asked", _markdown_table(("", ""), asked_rows(outcome))]
    parts += ["## Environment", _markdown_table(("", ""), environment_rows(outcome.environment))]
    return "\n\n".join(parts) + "\n"


def _markdown_table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [headers, ["---"] * len(headers), *([_plain(cell) for cell in cells] for cells in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _plain(text: str) -> str:
    """Text that Markdown shows as it is; a backslash takes the meaning of any of these."""
    return re.sub(r"([\\`*_\[\]<>|&~$#!]|:(?=//)|(?<=www)\.)", r"\\\1", text)


def _fence(command: str) -> str:
    """A block of code, fenced by more backticks than the command has in a row."""
    fence = "`" * (1 + max([2, *map(len, re.findall("`+", command))]))
    return f"{fence}sh\n{command}\n{fence}"


def csv_rows(outcome: Outcome) -> list[dict[str, object]]:
    """A row for each trial, best first: plain numbers, their units in the names of the columns."""
    facts = Facts(outcome)
    return [_csv_row(facts, trial) for trial in facts.best_first]


def _csv_row(facts: Facts, trial: Trial) -> dict[str, object]:
    plan, agreement, interval, against = trial.plan, trial.agreement, facts.interval(trial), facts.baseline
    ratio = facts.side_by_side(against, trial) if against else None
    return {
        "name": trial.name,
        "role": figures_of(facts, trial).role,
        "status": str(trial.status),
        "engine": plan.engine,
        "precision": plan.precision,
        "threads": plan.threads,
        "batch (examples)": trial.batch,
        "transformations": " ".join(plan.transformations),
        "latency, median (s)": interval.estimate if interval else None,
        "latency, 95 % low (s)": interval.low if interval else None,
        "latency, 95 % high (s)": interval.high if interval else None,
        "throughput (examples/s)": facts.merit(trial, "throughput"),
        "speed-up of": facts.default_name(against) if against and ratio else None,
        "speed-up (ratio)": ratio.estimate if ratio else None,
        "speed-up, 99 % low (ratio)": ratio.low if ratio else None,
        "speed-up, 99 % high (ratio)": ratio.high if ratio else None,
        "relative error (share)": agreement.relative_error if agreement else None,
        "same top-1 (share)": agreement.same_top1_share if agreement else None,
        "accuracy (share)": trial.accuracy,
        "on disk (bytes)": trial.size,
        "memory (bytes)": trial.memory,
        "load (s)": trial.load_seconds,
        "first call (s)": trial.first_call_seconds,
        "processors busy": trial.cores_used,
        "reason": trial.reason,
        "command": trial.command,
    }


def csv_text(outcome: Outcome) -> str:
    """The rows as CSV (RFC 4180); a text that a spreadsheet would compute has an apostrophe before it."""
    rows, text = csv_rows(outcome), io.StringIO()
    columns = list(rows[0]) if rows else ["name"]
    writer = csv.DictWriter(text, columns)
    writer.writeheader()
    writer.writerows({column: _inert(value) for column, value in one.items()} for one in rows)
    return text.getvalue()


def _inert(value: object) -> object:
    """What no spreadsheet takes for a formula: OWASP, "CSV injection"."""
    return f"'{value}" if isinstance(value, str) and value.lstrip().startswith(("=", "+", "-", "@", "|")) else value
