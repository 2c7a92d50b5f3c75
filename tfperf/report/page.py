"""What a search found, as one HTML file that needs nothing else: no network, no script, no font of its own."""

from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tfperf.measure.words import format_seconds, plain_ratio
from tfperf.report import tuning_plots
from tfperf.report.plots import DARK, LIGHT, PRINTED, check_target, write_target
from tfperf.report.tables import environment_rows
from tfperf.report.tuning import SUMMARY, answer, csv_text, markdown
from tfperf.report.tuning_facts import Facts
from tfperf.report.tuning_words import (
    asked_rows,
    commands,
    figures_of,
    merit_words,
    speed_up_words,
    statuses_words,
    tolerance_words,
    trust_words,
)
from tfperf.search.outcome import Outcome
from tfperf.trials.trial import Trial

__all__ = ["check_report_path", "notebook_html", "page", "write_report"]

TEMPLATES = Environment(
    loader=PackageLoader("tfperf.report"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)

TEMPLATES.globals.update(LIGHT=LIGHT, DARK=DARK, PRINTED=PRINTED)

LONG = 12
"""Trials above which their table is folded away until the reader asks for it."""


class Plot(NamedTuple):
    """A picture with what it shows."""

    title: str
    svg: Markup
    caption: str


def page(outcome: Outcome) -> str:
    """The report as one HTML document. The same outcome gives the same bytes."""
    facts = Facts(outcome)
    return TEMPLATES.get_template("page.html.j2").render(
        **_shared(facts),
        figures=_figures(facts),
        plots=_plots(facts),
        front=[(figures_of(facts, one), _merits(facts, one)) for one in (facts.trials[name] for name in outcome.front)],
        front_plot=Markup(tuning_plots.front_plot(facts) or ""),  # noqa: S704 - our own picture
        trials=[figures_of(facts, trial) for trial in facts.best_first],
        trials_words=statuses_words(outcome.trials) or "none",
        fold=len(outcome.trials) > LONG,
        doubts=facts.doubts,
        asked=asked_rows(outcome),
        environment=environment_rows(outcome.environment),
        commands=commands(facts),
        tolerance_words=tolerance_words(outcome),
    )


def notebook_html(outcome: Outcome) -> str:
    """The answer and the finalists as a fragment for `_repr_html_`, without style of its own."""
    return TEMPLATES.get_template("notebook.html.j2").render(**_shared(Facts(outcome)))


def _shared(facts: Facts) -> dict[str, object]:
    """What the page and the fragment have in common."""
    return {
        "outcome": facts.outcome,
        "answer": answer(facts.outcome),
        "columns": SUMMARY,
        "finalists": [figures_of(facts, trial) for trial in facts.finalists],
        "trust_words": trust_words(facts),
    }


def _figures(facts: Facts) -> list[tuple[str, str]]:
    """The winner's figures that are shown large: what it is, and how much."""
    if facts.best is None:
        return []
    best, figures = figures_of(facts, facts.best), []
    if facts.baseline and facts.baseline is not facts.best:
        ratio = facts.side_by_side(facts.baseline, facts.best)
        words = f"{plain_ratio(ratio.estimate)}x" if ratio else speed_up_words(facts, facts.baseline, facts.best)
        figures.append((f"of {facts.default_name(facts.baseline)}", words))
    seconds = facts.merit(facts.best, "latency")
    figures += [("a call", format_seconds(seconds) if seconds else "-"), ("examples a second", best.rate)]
    figures += [("largest error", best.error), ("on disk", best.size)]
    return [(what, how_much) for what, how_much in figures if how_much != "-"]


def _plots(facts: Facts) -> list[Plot]:
    drawn = [
        (
            "Speed-ups",
            tuning_plots.speed_up_plot(facts),
            "The best against each that it took turns with, with 99 % intervals; coloured: what you have.",
        ),
        (
            "Latency",
            tuning_plots.distribution_plot(facts),
            "All samples of the best and of what comes near to it, tail included: left and steep is good.",
        ),
        (
            "Latency against throughput",
            tuning_plots.throughput_plot(facts),
            "A line through the batch sizes of each finalist's plan; grey: the other plans.",
        ),
        (
            "Size and memory",
            tuning_plots.cost_plot(facts),
            "On disk: what the engine loads. Memory: what its process grew by, engine and net.",
        ),
        (
            "Accuracy against speed",
            tuning_plots.accuracy_plot(facts),
            "Every plan that ran, in the colour of its precision. Lower is more exact.",
        ),
    ]
    return [Plot(title, Markup(svg), caption) for title, svg, caption in drawn if svg]  # noqa: S704 - our own pictures


def _merits(facts: Facts, trial: Trial) -> list[str]:
    return [merit_words(facts, trial, objective) for objective in facts.outcome.question.objectives]


WRITERS = {".html": page, ".md": markdown, ".csv": csv_text}
"""Ending of a report's file -> what makes its text."""


def check_report_path(path: Path | str) -> None:
    """Refuse a place where no report can be written, before minutes of work are spent on it.

    Raises:
        ResultFileError: its ending is of no kind of report, or it cannot be written there.
    """
    path = Path(path)
    check_target(path, "report", list(WRITERS))


def write_report(path: Path | str, outcome: Outcome) -> None:
    """Write the report as its file's ending says, whole or not at all. Folders are made.

    Raises:
        ResultFileError: the ending is none of .html, .md, .csv, or the file cannot be written there.
    """
    check_report_path(path)
    path = Path(path)
    write_target(path, "report", WRITERS[path.suffix](outcome).encode())
