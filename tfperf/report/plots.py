"""What was measured, as pictures: in files, and on pages.

A picture on a page is drawn 360 units wide, the width of a telephone, with texts of 10 units: a page may show it
larger, never smaller. Its texts stay texts, in the reader's font; its colours are CSS variables, so that it follows
light and dark. Matplotlib's SVG as it is cannot: its colours stay, and its ids are the same in every picture of a page.
"""

import io
import re
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from tfperf.engines.plan import PRECISIONS
from tfperf.errors import ResultFileError
from tfperf.files import why_not_writable, writing_whole
from tfperf.measure import Comparison, Measurement
from tfperf.measure.words import escape_unprintable, format_seconds, plain_ratio

__all__ = [
    "DARK",
    "INK",
    "LIGHT",
    "LINE",
    "MUTED",
    "PRECISION_COLOURS",
    "PRINTED",
    "SERIES",
    "check_plot_path",
    "check_target",
    "distribution_plot",
    "draw_key",
    "interval_plot",
    "name_axes",
    "panel_axes",
    "panel_height",
    "rows_axes",
    "rows_height",
    "save",
    "set_scale",
    "shortened_name",
    "svg_of",
    "write_figure",
    "write_target",
]

LIGHT = {
    "paper": "#ffffff", "ink": "#1f2328", "muted": "#59636e", "line": "#d8dee4", "tint": "#f4f6f8",
    "s1": "#2a6f97", "s2": "#c2570c", "s3": "#2e7d4f", "s4": "#7b4d94", "s5": "#b03a48", "s6": "#8a6d00",
}  # fmt: skip
"""Name of a page's CSS variable -> the colour, of every picture and page: of text, lines, and s1 to s6 of series."""

DARK = {
    "paper": "#14181d", "ink": "#e3e8ee", "muted": "#9aa5b1", "line": "#323a44", "tint": "#1c222a",
    "s1": "#6cb6e4", "s2": "#f0995a", "s3": "#74c997", "s4": "#c59ae0", "s5": "#f08791", "s6": "#d9bb4a",
}  # fmt: skip
"""The same for a reader whose screen is dark."""

PRINTED = {**LIGHT, "ink": "#000000", "muted": "#444444", "line": "#bbbbbb"}
"""The same on paper."""

INK, MUTED, LINE = (LIGHT[name] for name in ("ink", "muted", "line"))
SERIES = tuple(LIGHT[f"s{number}"] for number in range(1, 7))
PRECISION_COLOURS = dict(zip(PRECISIONS, SERIES, strict=False))

IMAGES = (".svg", ".png")
"""Endings of the files that a picture is written to."""

WIDTH = 360.0
"""Units of a page's picture from side to side; 72 are an inch."""

MARGIN = 8.0
"""Units left free on each side."""

TEXT, ROW, KEY = 10.0, 36.0, 14.0
"""Units: the height of a letter, of a row with its name above what it shows, of a line of a key."""

MOST_LETTERS = 44
"""Letters of a name; a longer one is cut in its middle, since its end tells plans apart as its start does."""

PLAIN_TEXT: Any = {"text.parse_math": False, "font.size": TEXT, "text.color": INK}
"""Settings of Matplotlib under which a name is shown as it is."""

SVG = "{http://www.w3.org/2000/svg}"
HREF = "{http://www.w3.org/1999/xlink}href"


# ------------------------------------------------------------ files


def check_plot_path(path: Path) -> None:
    """Refuse a place where no picture can be written, before minutes of work are spent on it.

    Raises:
        ResultFileError: its ending is of no kind of picture, or it cannot be written there.
    """
    check_target(path, "plot", IMAGES)


def check_target(path: Path, what: str, endings: Sequence[str]) -> None:
    """Refuse a file of another kind, or one that cannot be written, before minutes of work are spent on it.

    Args:
        what: is to be written, as "report".
        endings: of which the file's must be one.

    Raises:
        ResultFileError: its ending is none of those, or it cannot be written there.
    """
    shown = escape_unprintable(path)[:200]
    if path.suffix not in endings:
        words = " or ".join(filter(None, [", ".join(endings[:-1]), endings[-1]]))
        raise ResultFileError(f"expected a {what}'s file to end in {words}. Received: {shown}")
    try:
        reason = why_not_writable(path)
    except OSError as error:  # as of a name that is too long
        reason = error.strerror or str(error)
    if reason:
        raise ResultFileError(f"cannot write the {what} {shown}: {escape_unprintable(reason)}")


def write_target(path: Path, what: str, content: bytes) -> None:
    """Write a file whole or not at all. Folders are made.

    Args:
        what: is written, as "report".

    Raises:
        ResultFileError: it cannot be written there.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with writing_whole(path) as file:
            file.write(content)
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        reason = getattr(error, "strerror", None) or error
        raise ResultFileError(f"cannot write the {what} {escape_unprintable(path)[:200]}: {reason}") from error


def write_figure(path: Path, figure: Figure, kind: str) -> None:
    """Write a figure whole or not at all, without a date.

    Args:
        kind: "png" or "svg".

    Raises:
        ResultFileError: the file cannot be written there.
    """
    content = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # a box stands for the letter
        figure.savefig(content, format=kind, metadata={"Date": None} if kind == "svg" else None)
    write_target(path, "plot", content.getvalue())


def save(path: Path, draw: Callable[[Figure], None]) -> None:
    """Draw a figure and write it whole or not at all, as SVG where the file's name ends so, else as PNG.

    Raises:
        ResultFileError: the file cannot be written there.
    """
    with mpl.rc_context({"svg.hashsalt": path.name}):  # else the same plot is another file each time
        figure = Figure(figsize=(9, 4.5), dpi=120, layout="constrained")
        draw(figure)
        write_figure(path, figure, "svg" if path.suffix == ".svg" else "png")


# ------------------------------------------------------------ comparisons


def interval_plot(axes: Axes, comparison: Comparison, title: str) -> None:
    """A dot for each candidate's median on a logarithmic scale, its 95 % interval, and how often faster than the first.

    Dots, not bars: a logarithmic scale has no zero for a bar to start from.
    """
    first, *_ = comparison.measurements
    for row, m in enumerate(comparison.measurements):
        estimate, low, high = m.interval
        axes.errorbar(
            estimate, row, xerr=[[estimate - low], [high - estimate]],
            fmt="o", color=SERIES[0], ecolor="black", capsize=4,
        )  # fmt: skip
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


# ------------------------------------------------------------ pictures of a page


def rows_height(rows: int, keys: int = 0) -> float:
    """Units that `rows_axes` needs: with a key below, or else with figures on the scale."""
    return rows * ROW + (10 + keys * KEY if keys else 40)


def rows_axes(figure: Figure, names: Sequence[tuple[str, str]], keys: int = 0) -> Axes:
    """Axes with a row for each name, its figure at the right, both above what the row shows."""
    width = WIDTH - 2 * MARGIN
    axes = _axes(figure, MARGIN, 8 + keys * KEY if keys else 34, width, len(names) * ROW)
    axes.set_ylim(len(names) - 0.55, -0.55)
    axes.yaxis.set_major_locator(NullLocator())
    for place, (name, figures) in enumerate(names):
        at: Any = {"va": "center", "transform": axes.get_yaxis_transform()}
        axes.text(0, place - 0.35, shortened_name(name, MOST_LETTERS - 8 * bool(figures)), ha="left", **at)
        axes.text(1, place - 0.35, figures, ha="right", **at)
    axes.spines["left"].set_visible(False)
    return axes


def panel_height(height: float, keys: int) -> float:
    """Units that `panel_axes` needs."""
    return height + 60 + keys * KEY


def panel_axes(figure: Figure, height: float, keys: int) -> Axes:
    """Axes of that height, with room for as many lines of a key below them."""
    return _axes(figure, 52, 38 + keys * KEY, WIDTH - 52 - MARGIN - 14, height)


def _axes(figure: Figure, left: float, bottom: float, width: float, height: float) -> Axes:
    total = figure.get_size_inches()[1] * 72
    axes = figure.add_axes((left / WIDTH, bottom / total, width / WIDTH, height / total))
    axes.set_facecolor("none")
    axes.spines[["top", "right"]].set_visible(False)
    for spine in axes.spines.values():
        spine.set_color(LINE)
    axes.tick_params(color=LINE, labelcolor=MUTED, labelsize=9, which="both")
    axes.grid(color=LINE, linewidth=0.6)
    axes.set_axisbelow(True)
    return axes


def name_axes(axes: Axes, across: str, up: str = "") -> None:
    """What the scales are of: below them, and above them, where nothing has to be turned to be read."""
    axes.set_xlabel(across, color=MUTED)
    axes.set_title(up, loc="left", fontsize=TEXT, color=MUTED)


def draw_key(figure: Figure, entries: Sequence[tuple[str, str, str]]) -> None:
    """Below everything: a line for each entry, its mark and its name."""
    total = figure.get_size_inches()[1] * 72
    for place, (name, hue, dashes) in enumerate(reversed(entries)):
        y = (place * KEY + 7) / total
        mark: Any = {"marker": "o", "markersize": 5} if not dashes else {"linestyle": dashes, "linewidth": 2}
        xs = [62 / WIDTH] if not dashes else [52 / WIDTH, 72 / WIDTH]
        figure.add_artist(Line2D(xs, [y] * len(xs), color=hue, **mark))
        figure.text(80 / WIDTH, y, shortened_name(name), va="center")


def set_scale(axes: Axes, side: str, low: float, high: float, words: Callable[[float], str], base: float = 10) -> None:
    """A logarithmic scale from low to high with a few figures on it, in words."""
    axis = axes.xaxis if side == "x" else axes.yaxis
    room = max(high / low, 1.02) ** 0.05
    (axes.set_xscale if side == "x" else axes.set_yscale)("log")
    (axes.set_xlim if side == "x" else axes.set_ylim)(low / room, high * room)
    wide = high / low
    few = 4 if side == "x" else 6
    if wide < 4:
        axis.set_major_locator(MaxNLocator(few - 1))
    else:
        axis.set_major_locator(LogLocator(base, subs=(1, 2, 5) if wide < 40 and base == 10 else (1,), numticks=few))
    axis.set_major_formatter(FuncFormatter(lambda value, _: words(value)))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def shortened_name(name: str, most: int = MOST_LETTERS) -> str:
    """A name of at most so many letters, cut in its middle."""
    half = most // 2
    return name if len(name) <= most else f"{name[:half]}…{name[-half + 1 :]}"


def svg_of(name: str, height: float, draw: Callable[[Figure], None], title: str) -> str:
    """The picture as one element for a page: deterministic, its ids begin with its name, its colours are variables."""
    text = io.StringIO()
    with mpl.rc_context({**PLAIN_TEXT, "svg.fonttype": "none", "svg.hashsalt": name}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # the reader's fonts draw the text
        figure = Figure(figsize=(WIDTH / 72, height / 72))
        draw(figure)
        none = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(text, format="svg", transparent=True, metadata=none)
    root = ET.fromstring(text.getvalue())  # noqa: S314 - written by Matplotlib just now
    _clean(root, name)
    root.attrib = {"viewBox": root.attrib["viewBox"], "xmlns": SVG[1:-1], "role": "img", "aria-label": title}
    return ET.tostring(root, encoding="unicode")


def _clean(root: ET.Element, name: str) -> None:
    """Make it safe to stand beside other pictures on a page, and have its colours and fonts follow the page."""
    for parent in root.iter():
        for child in list(parent):
            if child.tag == f"{SVG}style":  # it would be the whole page's
                parent.remove(child)
    used = set(re.findall(r"(?:url\(|\")#([\w.-]+)", ET.tostring(root, encoding="unicode")))
    for element in root.iter():
        element.tag = element.tag.removeprefix(SVG)
        attributes = element.attrib
        if HREF in attributes:
            attributes["href"] = f"#{name}-{attributes.pop(HREF)[1:]}"
        own = attributes.pop("id", None)
        if own in used:
            attributes["id"] = f"{name}-{own}"
        if "clip-path" in attributes:
            attributes["clip-path"] = attributes["clip-path"].replace("#", f"#{name}-")
        if "style" in attributes:
            style = re.sub(r"font-family: [^;]*;? ?", "", attributes["style"])
            attributes["style"] = re.sub("#[0-9a-f]{6}", _variable, style)


def _variable(found: re.Match[str]) -> str:
    """The page's variable for a colour; the colour itself where there is no page."""
    names = [name for name, colour in LIGHT.items() if colour == found[0]]
    return f"var(--{names[0]}, {found[0]})" if names else found[0]
