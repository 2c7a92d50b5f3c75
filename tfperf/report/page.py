"""What a search found, as one HTML file that needs nothing else: no network, no script, no font of its own."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tfperf.errors import ResultFileError
from tfperf.files import writing_whole
from tfperf.measure.words import escape_unprintable
from tfperf.report import tuning_plots
from tfperf.report.targets import check_target
from tfperf.report.tuning import SUMMARY, answer, csv_text, markdown
from tfperf.report.tuning_facts import Facts
from tfperf.report.tuning_words import (
    asked_rows,
    commands,
    environment_rows,
    merit_words,
    row,
    speed_up_words,
    statuses_words,
    tolerance_words,
    trust_words,
)
from tfperf.search.outcome import Outcome
from tfperf.trials.trial import Trial

__all__ = ["Section", "check_report_path", "notebook_html", "page", "write_report"]

TEMPLATES = Environment(
    loader=PackageLoader("tfperf.report"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)

LONG = 12
"""Trials above which their table is folded away until the reader asks for it."""


class Section(NamedTuple):
    """A part of the page that another room writes."""

    title: str
    body: Markup
    """Elements of HTML or SVG that our own code made; a plain text is shown as text."""


class Plot(NamedTuple):
    """A picture with what it shows."""

    title: str
    svg: Markup
    caption: str


def page(outcome: Outcome, sections: Sequence[Section] = ()) -> str:
    """The report as one HTML document. The same outcome gives the same bytes.

    Args:
        sections: to show after tfperf's own pictures and before the list of trials.
    """
    facts = Facts(outcome)
    return TEMPLATES.get_template("page.html.j2").render(
        **_shared(facts),
        figures=_figures(facts),
        plots=_plots(facts),
        front=[(row(facts, trial), _merits(facts, trial)) for trial in map(facts.trials.__getitem__, outcome.front)],
        front_plot=Markup(tuning_plots.front_plot(facts) or ""),  # noqa: S704 - our own picture
        sections=sections,
        trials=[row(facts, trial) for trial in facts.best_first],
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
        "finalists": [row(facts, trial) for trial in facts.finalists],
        "trust_words": trust_words(facts),
    }


def _figures(facts: Facts) -> list[tuple[str, str]]:
    """The winner's figures that are shown large: what it is, and how much."""
    if facts.best is None:
        return []
    best, figures = row(facts, facts.best), []
    if facts.baseline and facts.baseline is not facts.best:
        words = speed_up_words(facts, facts.baseline, facts.best)
        figures.append((f"of {facts.default_name(facts.baseline)}", words.partition(" [")[0]))
    figures += [("a call", best.latency.partition(" [")[0]), ("examples a second", best.rate)]
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
    check_target(path, "report", path.suffix in WRITERS, ", ".join(WRITERS))


def write_report(path: Path | str, outcome: Outcome) -> None:
    """Write the report as its file's ending says, whole or not at all. Folders are made.

    Raises:
        ResultFileError: the ending is none of .html, .md, .csv, or the file cannot be written there.
    """
    check_report_path(path)
    path = Path(path)
    content = WRITERS[path.suffix](outcome).encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with writing_whole(path) as file:
            file.write(content)
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        reason = getattr(error, "strerror", None) or error
        raise ResultFileError(f"cannot write the report {_shown(path)}: {reason}") from error


def _shown(path: Path) -> str:
    return escape_unprintable(path)[:200]
