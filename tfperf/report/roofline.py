"""The roofline: what a model and its layers reach, against what the machine gives. For pages, and as files."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tfperf.explaining.explanation import Explained, Roof
from tfperf.measure.words import escape_unprintable
from tfperf.report.plots import (
    INK,
    MUTED,
    PLAIN_TEXT,
    SERIES,
    check_plot_path,
    name_axes,
    panel_axes,
    panel_height,
    set_scale,
    shortened_name,
    svg_of,
    write_figure,
)

__all__ = ["RooflinePoint", "points_of", "roofline_plot", "write_roofline"]

MOST_POINTS = 8
"""Layers that are drawn with a number and named in the key: those that take the most time."""

LARGEST = 16.0
"""Diameter, in points of print, of a layer that takes all the time; its area goes with its share."""

SMALLEST = 4.0
"""Diameter of a layer that takes hardly any."""

NEAR = 1.3
"""Points that are so near to one another in both directions share their label."""


class RooflinePoint(NamedTuple):
    """A model or a layer."""

    name: str
    intensity: float
    """Floating-point operations for each byte."""
    rate: float
    """Floating-point operations a second."""
    share: float
    """The share of the time, from 0 to 1."""
    whole: bool = False
    """It is the model."""


def points_of(explained: Explained) -> list[RooflinePoint]:
    """The layers that take time, and the whole call as a graph."""
    whole = sum(layer.seconds for layer in explained.layers) or 1.0
    found = [
        RooflinePoint(layer.name, layer.intensity, layer.flops / layer.seconds, layer.seconds / whole)
        for layer in explained.layers
        if layer.seconds
    ]
    call = explained.call("graph")
    flops, size = (sum(getattr(layer, field) for layer in explained.layers) for field in ("flops", "bytes"))
    if call is not None and size:
        found.append(RooflinePoint("a call, as a graph", flops / size, flops / call.seconds, 1.0, whole=True))
    return found


def roofline_plot(points: Sequence[RooflinePoint], roofs: Sequence[Roof], name: str = "roofline") -> str | None:
    """The picture for a page; None: there is nothing to show, as of a net that only moves data.

    Args:
        name: what the ids in it begin with, a different one for each picture of a page.
    """
    shown = _drawable(points)
    if not shown:
        return None
    numbered = _numbered(shown)

    def draw(figure: Figure) -> None:
        axes = panel_axes(figure, 220, len(numbered) + 1)
        _draw(axes, shown, numbered, roofs)
        total = figure.get_size_inches()[1] * 72
        for place, words in enumerate(reversed(_key(numbered))):
            figure.text(14 / 360, (place * 14 + 7) / total, words, va="center", color=MUTED)

    return svg_of(name, panel_height(220, len(numbered) + 1), draw, "Roofline: arithmetic against traffic")


def write_roofline(path: Path, points: Sequence[RooflinePoint], roofs: Sequence[Roof], title: str) -> None:
    """Write the picture as its file's ending says, whole or not at all. Folders are made.

    Raises:
        ResultFileError: the ending is neither .svg nor .png, or the file cannot be written there.
    """
    check_plot_path(path)
    shown = _drawable(points)
    numbered = _numbered(shown)
    with mpl.rc_context({**PLAIN_TEXT, "svg.fonttype": "path", "svg.hashsalt": "roofline"}):
        figure = Figure(figsize=(10, 5.5), dpi=120, layout="constrained")
        axes = figure.add_subplot()
        axes.grid(alpha=0.3)
        _draw(axes, shown, numbered, roofs)
        axes.spines[["top", "right"]].set_visible(False)
        figure.suptitle(shortened_name(escape_unprintable(title), 100), x=0.01, ha="left")
        axes.text(1.02, 1.0, "\n".join(_key(numbered)), transform=axes.transAxes, va="top", linespacing=1.6)
        write_figure(path, figure, path.suffix[1:])


def _drawable(points: Sequence[RooflinePoint]) -> list[RooflinePoint]:
    """Those that have a place on logarithmic scales; the most time first."""
    having = [point for point in points if 0 < point.intensity < math.inf and point.rate > 0]
    return sorted(having, key=lambda point: (not point.whole, -point.share))


def _numbered(shown: Sequence[RooflinePoint]) -> dict[int, RooflinePoint]:
    """The layers that are named: number -> layer."""
    return dict(enumerate([point for point in shown if not point.whole][:MOST_POINTS], start=1))


def _key(numbered: dict[int, RooflinePoint]) -> list[str]:
    """Which layer has which number, and how much of the time it takes."""
    named = [
        f"{number}  {shortened_name(escape_unprintable(point.name), 36)}, {point.share:.0%} of the time"
        for number, point in numbered.items()
    ]
    return ["diamond: the whole model", *named]


def _draw(
    axes: Axes, shown: Sequence[RooflinePoint], numbered: dict[int, RooflinePoint], roofs: Sequence[Roof]
) -> None:
    peaks = [one for one in roofs if one.flops_per_second]
    slopes = [one for one in roofs if one.bytes_per_second]
    top = max([one.flops_per_second or 0.0 for one in peaks] + [point.rate for point in shown], default=1.0)
    ridges = [top / (one.bytes_per_second or 1.0) for one in slopes]
    left = min([point.intensity for point in shown] + ridges, default=1.0) / 4
    right = max([point.intensity for point in shown] + ridges, default=1.0) * 4
    lowest = min(
        [point.rate for point in shown] + [left * (one.bytes_per_second or 1.0) for one in slopes], default=1.0
    )
    set_scale(axes, "x", left, right, lambda value: f"{value:g}")
    set_scale(axes, "y", lowest / 2, top * 2, lambda value: f"{value / 1e9:g}")
    name_axes(axes, "FLOPs for each byte (arithmetic intensity)", "GFLOP/s")
    best = max([one.flops_per_second or 0.0 for one in peaks], default=top)
    for one in peaks:
        rate = one.flops_per_second or 0.0
        axes.plot([left, right], [rate, rate], color=INK, linewidth=1)
        # At the left, since the points are at the right
        axes.annotate(_label(one), (left, rate), (2, 3), textcoords="offset points", fontsize="small")
    for one in slopes:
        speed = one.bytes_per_second or 1.0
        axes.plot([left, best / speed], [left * speed, best], color=MUTED, linewidth=1, linestyle="--")
        axes.annotate(
            _label(one), (left, left * speed), (14, 2), textcoords="offset points",
            color=MUTED, fontsize="small", va="top",
        )  # fmt: skip
    for point in shown:
        size = max(SMALLEST, LARGEST * math.sqrt(point.share))
        mark, hue = ("D", SERIES[1]) if point.whole else ("o", SERIES[0])
        axes.plot([point.intensity], [point.rate], mark, color=hue, markersize=8 if point.whole else size, alpha=0.8)
    for (across, up), numbers in _together(numbered).items():
        axes.annotate(", ".join(numbers), (across, up), (4, -13), textcoords="offset points", fontsize="small")


def _together(numbered: dict[int, RooflinePoint]) -> dict[tuple[float, float], list[str]]:
    """The numbers of points that lie on one another, at the place of the first."""
    places: dict[tuple[float, float], list[str]] = {}
    for number, point in numbered.items():
        near = (
            place
            for place in places
            if max(point.intensity / place[0], place[0] / point.intensity) < NEAR
            and max(point.rate / place[1], place[1] / point.rate) < NEAR
        )
        places.setdefault(next(near, (point.intensity, point.rate)), []).append(str(number))
    return places


def _label(roof: Roof) -> str:
    """What a line is of, with its figure."""
    if roof.flops_per_second:
        return f"{roof.name}, {roof.flops_per_second / 1e9:.3g} GFLOP/s"
    return f"{roof.name}, {(roof.bytes_per_second or 0.0) / 1e9:.3g} GB/s"
