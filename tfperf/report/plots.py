"""What was measured, as pictures."""

import warnings
from collections.abc import Callable
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tfperf.errors import ResultFileError
from tfperf.files import writing_whole
from tfperf.measure import Comparison, Measurement
from tfperf.measure.words import format_seconds, plain_ratio

__all__ = ["distribution_plot", "interval_plot", "save"]

_COLOUR = "#2a6f97"


def save(path: Path, draw: Callable[[Figure], None]) -> None:
    """Draw a figure and write it as a PNG, whole or not at all.

    Raises:
        ResultFileError: the file cannot be written there.
    """
    figure = Figure(figsize=(9, 4.5), dpi=120, layout="constrained")
    draw(figure)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with writing_whole(path) as file, warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # a box stands for the letter
            figure.savefig(file, format="png")
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        reason = getattr(error, "strerror", None) or error
        raise ResultFileError(f"cannot write the plot {path}: {reason}") from error


def interval_plot(axes: Axes, comparison: Comparison, title: str) -> None:
    """A dot for each candidate's median on a logarithmic scale, its 95 % interval, and how often faster than the first.

    Dots, not bars: a logarithmic scale has no zero for a bar to start from.
    """
    first, *_ = comparison.measurements
    for row, m in enumerate(comparison.measurements):
        estimate, low, high = m.interval
        axes.errorbar(
            estimate, row, xerr=[[estimate - low], [high - estimate]], fmt="o", color=_COLOUR, ecolor="black", capsize=4
        )
        ratio = "" if m is first else f", {plain_ratio(comparison.ratio(first.name, m.name).estimate)}x"
        words = f"{format_seconds(estimate)}{ratio}"
        axes.annotate(words, (high, row), (8, 0), textcoords="offset points", va="center")
    axes.set_yticks(range(len(comparison.measurements)), [m.name for m in comparison.measurements])
    axes.invert_yaxis()
    axes.margins(y=0.15)
    axes.set_xscale("log")
    shortest = min(m.interval.low for m in comparison.measurements)
    longest = max(m.interval.high for m in comparison.measurements)
    axes.set_xlim(shortest / 1.5, longest * (longest / shortest) ** 0.6 * 2)  # room for the words beside the dots
    axes.grid(axis="x", alpha=0.3)
    axes.set_xlabel("seconds a call (logarithmic), 95 % interval")
    axes.set_title(title)
    axes.spines[["top", "right"]].set_visible(False)


def distribution_plot(axes: Axes, measurements: tuple[Measurement, ...], title: str) -> None:
    """The share of samples that took no longer than a time: the whole distribution, tail included."""
    for m in measurements:
        axes.ecdf(m.samples, label=m.name)
    axes.set_xscale("log")
    axes.set_xlabel("seconds a call (logarithmic)")
    axes.grid(axis="x", alpha=0.3)
    axes.set_ylabel("share of samples that took no longer")
    axes.set_title(title)
    axes.legend(fontsize="small", ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.15))
    axes.spines[["top", "right"]].set_visible(False)
