"""A survey of engines, as a table, as a picture and as a result file."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Group
from rich.markup import escape

from tfperf.engines.catalog import find_engine
from tfperf.measure import Verdict
from tfperf.measure.results import Fact, Result
from tfperf.measure.words import format_bytes, format_interval, format_ratio, format_seconds, plain_ratio
from tfperf.report.plots import PRECISION_COLOURS
from tfperf.report.tables import bare_table, each_kind_once, remarks, with_notes
from tfperf.report.tuning_words import percent_words
from tfperf.trials.side_by_side import ANSWERS_ALIKE
from tfperf.trials.survey import Survey
from tfperf.trials.trial import Trial, median_seconds

__all__ = ["answer", "cost_table", "failures_and_doubts", "speed_table", "survey_plots", "survey_result"]


def speed_table(survey: Survey) -> Group:
    """How fast: one row for each plan that ran."""
    table = bare_table("", "latency [95 %]", "examples/s", "speed-up [99 %]")
    baseline = _baseline(survey)
    for row in survey.ran:
        assert row.measurement is not None
        table.add_row(
            escape(_label(row)),
            format_interval(row.measurement.interval),
            f"{survey.batch / row.measurement.interval.estimate:,.0f}",
            _speed_up(survey, baseline, row),
        )
    return with_notes(table, [], [], ["examples/s"])


def failures_and_doubts(survey: Survey) -> Group:
    """The plans that did not run, with their reasons, then the doubts."""
    notes = [f"{_label(row)}: {row.status}: {row.reason}" for row in survey.trials if row.measurement is None]
    return Group(*remarks(notes, _doubts(survey)))


def cost_table(survey: Survey) -> Group:
    """What it takes: one row for each plan that ran.

    Its largest error against the net in float32, as a share of the largest output, and how many rows have the same
    largest output; the first call, loading the engine with the net, bytes on disk and of memory
    beyond those of Python, and the cores that were busy.
    """
    table = bare_table("", "error", "top-1", "first call", "load", "disk", "memory", "cores")
    for row in survey.ran:
        assert row.measurement is not None
        assert row.agreement is not None
        table.add_row(
            escape(_label(row)),
            f"{row.agreement.relative_error:.1g}" if row.agreement.relative_error is not None else "-",
            percent_words(row.agreement.same_top1_share),
            format_seconds(row.first_call_seconds or 0),
            format_seconds(row.load_seconds or 0),
            format_bytes(row.size) if row.size is not None else "-",
            format_bytes(row.memory or 0),
            f"{row.cores_used:.1f}" if row.cores_used is not None else "-",
        )
    return with_notes(table, [], [], ["load", "first call", "cores"])


def answer(survey: Survey) -> str:
    """Which plan is the fastest, in a sentence for float32 and one for all precisions."""
    exact = [row for row in survey.ran if row.plan.precision == "float32"]
    sentences = [_fastest_words(survey, exact, "in float32")] if exact else []
    if len(exact) < len(survey.ran):
        sentences.append(_fastest_words(survey, survey.ran, "of all"))
    return "; ".join(sentences) or f"no plan ran at batch {survey.batch}"


def _fastest_words(survey: Survey, rows: Sequence[Trial], among: str) -> str:
    best, baseline = min(rows, key=median_seconds), _baseline(survey)
    words = f"fastest {among} at batch {survey.batch}: {best.plan}, {format_seconds(median_seconds(best))} a call"
    if survey.comparison is None or baseline is None or best is baseline:
        return words
    ratios = {row.name: survey.comparison.ratio(row.name, best.name) for row in rows if row is not best}
    ratio = survey.comparison.ratio(baseline.name, best.name)
    words += f", {plain_ratio(ratio.estimate)}x of {_label(baseline)}"
    if any(one.verdict is Verdict.TOO_FEW for one in ratios.values()):
        return f"{words} (too few rounds for a verdict)"
    equal = [_label(row) for row in rows if row is not best and ratios[row.name].verdict is not Verdict.FASTER]
    return words + (f" (not distinguishable: {', '.join(equal)})" if equal else "")


def _doubts(survey: Survey) -> list[tuple[str, str]]:
    """Each kind of doubt once, with whom it concerns."""
    told = [("", doubt) for doubt in survey.comparison.doubts] if survey.comparison else []
    told += [(_label(row), doubt) for row in survey.ran if row.measurement for doubt in row.measurement.doubts]
    lines = each_kind_once(told, everyone=len(survey.ran))
    if survey.ran and not survey.answers_vary:
        lines.insert(0, ("all", f"{ANSWERS_ALIKE.words}: {ANSWERS_ALIKE.advice}"))
    return lines


def _label(row: Trial) -> str:
    """Its plan without what the whole table has in common."""
    plan = row.plan.model_copy(update={"threads": None, "batch": None})
    return " ".join((plan.engine, *plan.settings))


def survey_plots(figure: Figure, surveys: Sequence[Survey], title: str) -> None:
    """A picture for each survey, one below the other."""
    heights = [1.2 + 0.28 * len(survey.ran) for survey in surveys]
    figure.set_size_inches(9, sum(heights))
    panels = figure.subplots(len(surveys), squeeze=False, sharex=True, height_ratios=heights)[:, 0]
    for axes, survey in zip(panels, surveys, strict=True):
        _draw(axes, survey, f"{title}, {survey.title}")
    panels[-1].set_xlabel("seconds a call (logarithmic), 95 % interval")
    intervals = [row.measurement.interval for survey in surveys for row in survey.ran if row.measurement]
    if intervals:
        shortest, longest = min(one.low for one in intervals), max(one.high for one in intervals)
        room = (longest / shortest) ** 0.4 * 2  # for the words beside the dots
        panels[-1].set_xlim(shortest / 1.5, longest * room)


def _draw(axes: Axes, survey: Survey, title: str) -> None:
    """Each plan's latency on a logarithmic scale with its 95 % interval, the fastest at the top, and its error."""
    rows = sorted(survey.ran, key=median_seconds)
    for place, row in enumerate(rows):
        assert row.measurement is not None
        estimate, low, high = row.measurement.interval
        axes.errorbar(
            estimate,
            place,
            xerr=[[estimate - low], [high - estimate]],
            fmt="o",
            color=PRECISION_COLOURS[row.plan.precision],
            ecolor="black",
            capsize=4,
        )
        error = row.agreement.relative_error if row.agreement else None
        words = format_seconds(estimate) + (f", error {error:.0e}" if error else "")
        axes.annotate(words, (high, place), (8, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_yticks(range(len(rows)), [_label(row) for row in rows])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.grid(axis="x", alpha=0.3)
    axes.set_title(title, parse_math=False)
    axes.spines[["top", "right"]].set_visible(False)


def survey_result(name: str, surveys: Sequence[Survey]) -> Result:
    """What is kept of surveys: measurements, ratios, agreements, and each plan's facts under the plan's name."""
    rows = [row for survey in surveys for row in survey.trials]
    return Result(
        name=name,
        measurements=tuple(
            row.measurement for survey in surveys if survey.comparison is None for row in survey.ran if row.measurement
        ),
        comparisons=tuple(survey.comparison for survey in surveys if survey.comparison is not None),
        agreements=tuple(row.agreement for row in rows if row.agreement is not None),
        facts={f"{row.name}: {key}": value for row in rows for key, value in _facts(row).items()},
        meaning=tuple(answer(survey) for survey in surveys),
    )


def _facts(row: Trial) -> dict[str, Fact]:
    values: dict[str, Fact | None] = {
        "status": str(row.status),
        "reason": row.reason or None,
        "bytes on disk": row.size,
        "load seconds": row.load_seconds,
        "first call seconds": row.first_call_seconds,
        "cores used": row.cores_used,
        **{f"proof of {what}": words for what, words in row.proof.items()},
    }
    return {name: value for name, value in values.items() if value is not None}


def _baseline(survey: Survey) -> Trial | None:
    """What speed-ups are told against: the first in float32 by its engine's place, else the first that ran."""
    exact = [row for row in survey.ran if row.plan.precision == "float32"]
    return min(exact or survey.ran[:1], key=lambda row: find_engine(row.plan.engine).baseline_place, default=None)


def _speed_up(survey: Survey, baseline: Trial | None, row: Trial) -> str:
    if survey.comparison is None or baseline is None or row is baseline:
        return "1"
    return format_ratio(survey.comparison.ratio(baseline.name, row.name).interval)
