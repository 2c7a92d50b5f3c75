"""What a search found, as pictures; None where there is nothing to show."""

import math
from collections.abc import Callable, Iterable

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from tfperf.engines.plan import PRECISIONS
from tfperf.measure.words import format_bytes, format_ratio, format_seconds
from tfperf.report.plots import (
    INK,
    LINE,
    MUTED,
    PRECISION_COLOURS,
    SERIES,
    draw_key,
    name_axes,
    panel_axes,
    panel_height,
    rows_axes,
    rows_height,
    set_scale,
    svg_of,
)
from tfperf.report.tuning_facts import Facts
from tfperf.search.question import Objective
from tfperf.trials.trial import Trial

__all__ = [
    "accuracy_plot",
    "cost_plot",
    "distribution_plot",
    "front_plot",
    "speed_up_plot",
    "throughput_plot",
]

MOST_ROWS = 12
"""Rows of a picture: the best. The tables have all."""

NEAR = 8.0
"""A distribution is drawn of what takes at most so many times as long as the best: of slower ones it says nothing."""

CURVE_POINTS = 300
"""Points that a distribution is drawn with, however many samples it has."""

DASHES = ("-", "--", ":", "-.")

AXES: dict[Objective, tuple[str, Callable[[float], str]]] = {
    "latency": ("seconds a call", format_seconds),
    "throughput": ("examples a second", lambda value: _short_number(value)),
    "size": ("on disk", format_bytes),
    "memory": ("of memory", format_bytes),
}
"""Objective -> what its axis is called, and its figures in words."""


def speed_up_plot(facts: Facts) -> str | None:
    """How many times as fast the winner is as each that it took turns with, with 99 % intervals; None: with none."""
    if facts.best is None:
        return None
    pairs = [(trial, facts.side_by_side(trial, facts.best)) for trial in facts.finalists]
    told = sorted(((trial, ratio) for trial, ratio in pairs if ratio), key=lambda pair: pair[1].estimate)[-MOST_ROWS:]
    if not told:
        return None

    def draw(figure: Figure) -> None:
        axes = rows_axes(figure, [(facts.label(trial), format_ratio(ratio.interval)) for trial, ratio in told])
        for place, (trial, ratio) in enumerate(told):
            hue = SERIES[0] if trial.name in facts.outcome.defaults else MUTED
            axes.plot([ratio.low, ratio.high], [place, place], color=hue, linewidth=3)
            axes.plot([ratio.estimate], [place], "o", color=hue, markersize=6)
        axes.axvline(1, color=INK, linewidth=1, linestyle=":")
        low, high = min(1.0, *(ratio.low for _, ratio in told)), max(1.0, *(ratio.high for _, ratio in told))
        set_scale(axes, "x", low, high, lambda value: f"{value:,.0f}x" if value >= 100 else f"{value:.4g}x")
        name_axes(axes, "times as fast as")

    return svg_of("speed_up", rows_height(len(told)), draw, "Speed-ups with their 99 % intervals")


def distribution_plot(facts: Facts) -> str | None:
    """The share of samples that took no longer than a time, for the finalists that come near to the best."""
    compared = facts.outcome.final or facts.outcome.confirmation
    if compared is None:
        return None
    names = {measurement.name for measurement in compared.measurements}
    in_turns = [trial for trial in facts.finalists if trial.name in names]
    if not in_turns:
        return None
    first = compared[in_turns[0].name].median
    shown = [trial for trial in in_turns if 1 / NEAR <= compared[trial.name].median / first <= NEAR][: len(SERIES)]
    key = [(facts.label(trial), SERIES[n], DASHES[n % len(DASHES)]) for n, trial in enumerate(shown)]

    def draw(figure: Figure) -> None:
        axes = panel_axes(figure, 150, len(key))
        shares = np.linspace(0, 1, CURVE_POINTS)
        times = [np.quantile(compared[trial.name].samples, shares, method="inverted_cdf") for trial in shown]
        for seconds, (_, hue, dashes) in zip(times, key, strict=True):
            axes.plot(seconds, shares, color=hue, linestyle=dashes, drawstyle="steps-post")
        set_scale(axes, "x", min(t[0] for t in times), max(t[-1] for t in times), format_seconds)
        axes.set_yticks([0, 0.5, 1], ["0", "half", "all"])
        name_axes(axes, "samples that took no longer than")
        draw_key(figure, key)

    return svg_of("distribution", panel_height(150, len(key)), draw, "Latency distributions of the finalists")


def throughput_plot(facts: Facts) -> str | None:
    """Latency against throughput, a line through the batch sizes of a plan; None: there is one batch size only."""
    ran = [trial for trial in facts.outcome.trials if facts.interval(trial)]
    if len({trial.batch for trial in ran}) < 2:
        return None
    plans = list(dict.fromkeys(_any_batch(trial) for trial in facts.finalists))[: len(SERIES)]
    key = [(plan, SERIES[n], DASHES[n % len(DASHES)]) for n, plan in enumerate(plans)]

    def draw(figure: Figure) -> None:
        axes = panel_axes(figure, 170, len(key))
        axes.plot(*_points(facts, ran), "o", color=LINE, markersize=4)
        for plan, hue, dashes in key:
            alike = sorted((trial for trial in ran if _any_batch(trial) == plan), key=lambda trial: trial.batch)
            xs, ys = _points(facts, alike)
            axes.plot(xs, ys, "o", color=hue, linestyle=dashes, markersize=4)
            if plan == plans[0]:
                for trial, x, y in zip(alike, xs, ys, strict=True):
                    axes.annotate(
                        f"batch {trial.batch}", (x, y), (0, 6), textcoords="offset points", ha="center", fontsize=9
                    )
        xs, ys = _points(facts, ran)
        set_scale(axes, "x", min(xs), max(xs), format_seconds)
        set_scale(axes, "y", min(ys), max(ys) * 1.3, _short_number)
        name_axes(axes, "seconds a call", "examples a second")
        draw_key(figure, key)

    return svg_of("throughput", panel_height(170, len(key)), draw, "Latency against throughput")


def cost_plot(facts: Facts) -> str | None:
    """Bytes on disk and of memory of each finalist."""
    shown = facts.finalists[:MOST_ROWS]
    if not shown:
        return None
    key = [("on disk", SERIES[0], ""), ("of memory", SERIES[1], "")]

    def draw(figure: Figure) -> None:
        axes = rows_axes(figure, [(facts.label(trial), "") for trial in shown], keys=len(key))
        for place, trial in enumerate(shown):
            for offset, size, hue in ((0.0, trial.size, SERIES[0]), (0.25, trial.memory, SERIES[1])):
                axes.barh(place + offset, size or 0, height=0.2, color=hue)
                words = "none" if size is None else format_bytes(size)
                axes.annotate(
                    words, (size or 0, place + offset), (4, 0), textcoords="offset points", va="center", fontsize=9
                )
        axes.set_xlim(0, 1.25 * max(1, *(size or 0 for trial in shown for size in (trial.size, trial.memory))))
        axes.xaxis.set_major_locator(NullLocator())
        axes.spines["bottom"].set_visible(False)
        draw_key(figure, key)

    return svg_of("cost", rows_height(len(shown), len(key)), draw, "Bytes on disk and of memory")


def accuracy_plot(facts: Facts) -> str | None:
    """The relative error of every plan that ran against its speed; the line is what the search lets pass."""
    by_rate = facts.outcome.question.objectives[0] == "throughput"
    ran = [trial for trial in facts.outcome.trials if facts.interval(trial) and trial.agreement]
    told = [(trial, trial.agreement.relative_error) for trial in ran if trial.agreement]
    points = [(trial, error) for trial, error in told if error is not None]
    if not points:
        return None
    limit = facts.outcome.question.tolerance if facts.outcome.question.accuracy_drop is None else 0.0
    some = [error for error in (*(error for _, error in points), limit) if error > 0] or [1e-7]
    floor = 10.0 ** (math.floor(math.log10(min(some))) - 1)  # where no error at all is drawn
    seen = [precision for precision in PRECISIONS if any(trial.plan.precision == precision for trial, _ in points)]
    key = [(precision, PRECISION_COLOURS[precision], "") for precision in seen]
    objective: Objective = "throughput" if by_rate else "latency"

    def draw(figure: Figure) -> None:
        axes = panel_axes(figure, 170, len(key))
        for trial, error in points:
            hue = PRECISION_COLOURS[trial.plan.precision]
            place = facts.merit(trial, objective) or 0.0, max(error, floor)
            axes.plot(*place, "o", color=hue, markersize=5, alpha=0.8)
            if trial is facts.best:
                axes.plot(*place, "o", color="none", markeredgecolor=INK, markersize=11, zorder=3)
                axes.annotate("best", place, (0, 9), textcoords="offset points", ha="center", fontsize=9, zorder=3)
        if limit:
            axes.axhline(limit, color=INK, linewidth=1, linestyle=":")
            axes.annotate(
                f"passes up to {limit:.1g}", (1, limit), (-2, 4), xycoords=("axes fraction", "data"),
                textcoords="offset points", ha="right", fontsize=9,
            )  # fmt: skip
        xs = [facts.merit(trial, objective) or 1.0 for trial, _ in points]
        set_scale(axes, "x", min(xs), max(xs), AXES[objective][1])
        set_scale(axes, "y", floor, max(some) * 4, lambda value: "0" if value <= floor * 1.01 else f"{value:.0e}")
        name_axes(axes, AXES[objective][0], "relative error")
        draw_key(figure, key)

    return svg_of("accuracy", panel_height(170, len(key)), draw, "Relative error against speed")


def front_plot(facts: Facts) -> str | None:
    """The first two objectives against each other, the front numbered as it is listed; None: one objective only."""
    if len(facts.outcome.question.objectives) < 2:
        return None
    across, up = facts.outcome.question.objectives[:2]

    def point(trial: Trial) -> tuple[float, float] | None:
        x, y = facts.merit(trial, across), facts.merit(trial, up)
        return (x, y) if x and y else None  # a logarithmic scale has no zero

    others = [place for place in map(point, facts.outcome.trials) if place]
    front = {n: place for n, name in enumerate(facts.outcome.front, 1) if (place := point(facts.trials[name]))}
    if not others or not front:
        return None

    def draw(figure: Figure) -> None:
        axes = panel_axes(figure, 190, 0)
        axes.plot(*zip(*others, strict=True), "o", color=LINE, markersize=4)
        axes.plot(*zip(*sorted(front.values()), strict=True), "-o", color=SERIES[0], markersize=5, linewidth=1)
        for n, place in front.items():
            axes.annotate(str(n), place, (0, 6), textcoords="offset points", ha="center")
        for side, objective, values in zip("xy", (across, up), zip(*others, strict=True), strict=True):
            room = 1.1 if side == "y" else 1  # for the numbers above the dots
            bytes_or_not = 2 if objective in {"size", "memory"} else 10
            set_scale(axes, side, min(values), max(values) * room, AXES[objective][1], bytes_or_not)
        name_axes(axes, AXES[across][0], AXES[up][0])

    return svg_of("front", panel_height(190, 0), draw, f"The Pareto front of {across} and {up}")


def _any_batch(trial: Trial) -> str:
    return str(trial.plan.model_copy(update={"batch": None}))


def _points(facts: Facts, trials: Iterable[Trial]) -> tuple[list[float], list[float]]:
    """Seconds a call, and examples a second, of each."""
    trials = list(trials)
    xs = [facts.merit(trial, "latency") or 0.0 for trial in trials]
    return xs, [facts.merit(trial, "throughput") or 0.0 for trial in trials]


def _short_number(value: float) -> str:
    """Five figures at most: "12k", "3.5M"."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"
