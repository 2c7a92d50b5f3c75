"""What a search for a training plan found: the answer in a sentence, a table, and one HTML file."""

import math
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich.console import Group
from rich.markup import escape

from tfperf.measure import Doubt, Verdict
from tfperf.measure.words import format_ratio, format_seconds, plain_ratio
from tfperf.report.page import TEMPLATES, Plot
from tfperf.report.plots import (
    LINE,
    MUTED,
    SERIES,
    check_target,
    draw_key,
    name_axes,
    panel_axes,
    panel_height,
    rows_axes,
    rows_height,
    set_scale,
    svg_of,
    write_target,
)
from tfperf.report.tables import bare_table, each_kind_once, environment_rows, with_notes
from tfperf.search.training.outcome import TrainingOutcome
from tfperf.training.plan import CHANGES, TrainingPlan
from tfperf.trials.training.trial import TrainingTrial
from tfperf.trials.trial import Status

__all__ = ["answer", "check_training_page_path", "training_page", "trial_table", "write_training_page"]

COLUMNS = ("plan", "examples/s", "the winner is [99 %]", "last loss", "")

MOST_ROWS = 12
"""Rows of a picture: the fastest. The table has all."""


def answer(outcome: TrainingOutcome) -> str:
    """Which plan trains fastest, how much faster than what users have, and whether it learns the same: a sentence."""
    best, default = outcome.best, outcome.default
    if best is None:
        return "No plan trained"
    cut = {"finished": "", "time limit": "best so far, the time was up", "interrupted": "best so far, interrupted"}
    standing = [cut[outcome.ended], "" if outcome.final else "not measured in turns"]
    if best.name == default:
        standing.append("what you have is the best already")
    words = [f"{best.name}: {_rate(outcome, best)} examples/s"]
    if default is not None and best.name != default:
        ratio, seconds = outcome.ratio(default), outcome.trial(default).seconds
        if ratio is None and math.isinf(seconds):  # its measurement went with it
            words.append(f"there is nothing to compare with, because {default} failed in the final")
        elif ratio is None:
            words.append(f"{plain_ratio(seconds / best.seconds)}x of {default} (measured separately)")
        else:
            doubt = "" if ratio.verdict is Verdict.FASTER else f" ({ratio.verdict})"
            words.append(f"{format_ratio(ratio.interval)} of {default}{doubt}")
    words.append("its loss stays in the band of float32's seeds")
    if outcome.equals:
        words.append(f"not distinguishable from: {'; '.join(outcome.equals)}")
    head = ", ".join(filter(None, standing))
    sentence = ", ".join(words)
    return f"{head[0].upper()}{head[1:]}: {sentence}" if head else sentence


def trial_table(outcome: TrainingOutcome) -> Group:
    """Every plan that trained, fastest first; below them those that did not, with the reason of each."""
    table = bare_table(*COLUMNS)
    for trial in _fastest_first(outcome):
        table.add_row(*map(escape, _row(outcome, trial)))
    others = [trial for trial in outcome.trials if trial.status is not Status.RAN]
    notes = [f"{trial.name}: {trial.status}: {trial.reason}" for trial in others]
    notes += [f"{words}: {Status.NOT_TRIED}: {why}" for words, why in _left_out(outcome)]
    return with_notes(table, notes, each_kind_once(_doubts(outcome)), ["last loss"])


def _fastest_first(outcome: TrainingOutcome) -> list[TrainingTrial]:
    ran = [trial for trial in outcome.trials if trial.status is Status.RAN]
    in_final = [one.name for one in outcome.final.measurements] if outcome.final else []
    return sorted(ran, key=lambda trial: (trial.name not in in_final, _seconds(outcome, trial)))


def _seconds(outcome: TrainingOutcome, trial: TrainingTrial) -> float:
    """Seconds for an example, from the final where it was in it."""
    if outcome.final and trial.name in [one.name for one in outcome.final.measurements]:
        return outcome.final[trial.name].median / trial.examples
    return trial.seconds


def _row(outcome: TrainingOutcome, trial: TrainingTrial) -> tuple[str, ...]:
    ratio = outcome.ratio(trial.name)
    loss = trial.course.losses[-1] if trial.course else None
    role = "the winner" if trial.name == outcome.winner else "what you have" if trial.name == outcome.default else ""
    return (
        trial.name,
        _rate(outcome, trial),
        format_ratio(ratio.interval) if ratio else "",
        "" if loss is None else f"{loss:.3f}",
        role,
    )


def _rate(outcome: TrainingOutcome, trial: TrainingTrial) -> str:
    rate = 1 / _seconds(outcome, trial)
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def _left_out(outcome: TrainingOutcome) -> list[tuple[str, str]]:
    """The changes that the model does not allow, in words, and why."""
    return [(CHANGES[name].words if name in CHANGES else name, why) for name, why in outcome.left_out.items()]


def _doubts(outcome: TrainingOutcome) -> list[tuple[str, Doubt]]:
    doubts: list[tuple[str, Doubt]] = [("", doubt) for doubt in outcome.doubts]
    if outcome.final:
        doubts += [("", doubt) for doubt in outcome.final.doubts]
        doubts += [(one.name, doubt) for one in outcome.final.measurements for doubt in one.doubts]
    return doubts


# ------------------------------------------------------------ the page


def training_page(outcome: TrainingOutcome) -> str:
    """The report as one HTML document. The same outcome gives the same bytes."""
    return TEMPLATES.get_template("training.html.j2").render(
        outcome=outcome,
        answer=answer(outcome),
        figures=_figures(outcome),
        plots=_plots(outcome),
        columns=COLUMNS,
        rows=[(trial, _row(outcome, trial)) for trial in _fastest_first(outcome)],
        others=[trial for trial in outcome.trials if trial.status is not Status.RAN],
        left_out=_left_out(outcome),
        doubts=each_kind_once(_doubts(outcome)),
        changes=[(change.words, change.code) for change in CHANGES.values()],
        asked=_asked_rows(outcome),
        environment=environment_rows(outcome.environment),
    )


def check_training_page_path(path: Path | str) -> None:
    """Refuse a place where no report can be written, before minutes of work are spent on it.

    Raises:
        ResultFileError: its ending is not .html, or it cannot be written there.
    """
    check_target(Path(path), "report", [".html"])


def write_training_page(path: Path | str, outcome: TrainingOutcome) -> None:
    """Write the report, whole or not at all. Folders are made.

    Raises:
        ResultFileError: the ending is not .html, or the file cannot be written there.
    """
    check_training_page_path(path)
    write_target(Path(path), "report", training_page(outcome).encode())


def _asked_rows(outcome: TrainingOutcome) -> list[tuple[str, str]]:
    segments = len(next(iter(outcome.references.values()))[0].losses)
    return [
        ("model", outcome.opened_as),
        ("data", outcome.data),
        ("batch size", str(outcome.batch_size)),
        ("first steps that are compared", f"{segments} segments of {outcome.steps}"),
        ("took", format_seconds(outcome.seconds)),
    ]


def _figures(outcome: TrainingOutcome) -> list[tuple[str, str]]:
    best, figures = outcome.best, []
    if best is None:
        return []
    ratio = outcome.ratio(outcome.default) if outcome.default else None
    if ratio:
        figures.append((f"of {ratio.baseline}", f"{plain_ratio(ratio.estimate)}x"))
    return [*figures, ("examples a second", _rate(outcome, best))]


def _plots(outcome: TrainingOutcome) -> list[Plot]:
    drawn = [
        (
            "Speed",
            _speed_plot(outcome),
            "Examples a second, the fastest first; coloured: the winner and what you have.",
        ),
        (
            "Loss in the first steps",
            _loss_plot(outcome),
            "Grey: the default plan in float32 with each seed. A plan whose loss leaves their band is refused.",
        ),
    ]
    return [Plot(title, Markup(svg), caption) for title, svg, caption in drawn if svg]  # noqa: S704 - our own pictures


def _speed_plot(outcome: TrainingOutcome) -> str | None:
    ran = sorted(_fastest_first(outcome), key=lambda trial: _seconds(outcome, trial))
    default = [trial for trial in ran[MOST_ROWS:] if trial.name == outcome.default]
    shown = [*ran[: MOST_ROWS - len(default)], *default]
    if len(shown) < 2:
        return None
    rates = [1 / _seconds(outcome, trial) for trial in shown]

    def draw(figure: Figure) -> None:
        names = [(trial.name, f"{rate:,.4g}") for trial, rate in zip(shown, rates, strict=True)]
        axes = rows_axes(figure, names)
        for place, (trial, rate) in enumerate(zip(shown, rates, strict=True)):
            hue = SERIES[0] if trial.name in (outcome.winner, outcome.default) else MUTED
            axes.plot([0, rate], [place, place], color=hue, linewidth=4, solid_capstyle="butt")
        axes.set_xlim(0, 1.05 * max(rates))
        axes.xaxis.set_major_locator(MaxNLocator(4))
        name_axes(axes, "examples a second")

    return svg_of("speed", rows_height(len(shown)), draw, "Examples a second of every plan")


def _drawn(losses: Sequence[float | None]) -> list[float]:
    return [math.nan if loss is None else loss for loss in losses]


def _loss_plot(outcome: TrainingOutcome) -> str | None:
    best = outcome.best
    if best is None or best.course is None:
        return None
    name = str(TrainingPlan(batch_size=best.plan.batch_size))
    references, own = outcome.references[name], best.course.losses
    steps = [outcome.steps * number for number in range(1, len(own) + 1)]
    key = [(f"{name}, {len(references)} seeds", LINE, "-"), (best.name, SERIES[0], "-")]

    def draw(figure: Figure) -> None:
        axes = panel_axes(figure, 170, len(key))
        for one in references:
            axes.plot(steps, _drawn(one.losses), color=MUTED, linewidth=1)
        axes.plot(steps, _drawn(own), color=SERIES[0])
        losses = [loss for one in (own, *(one.losses for one in references)) for loss in one if loss and loss > 0]
        set_scale(axes, "y", min(losses), max(losses), lambda value: f"{value:.3g}")
        name_axes(axes, "steps", "loss")
        draw_key(figure, key)

    return svg_of("loss", panel_height(170, len(key)), draw, "Loss in the first steps, beside float32")
