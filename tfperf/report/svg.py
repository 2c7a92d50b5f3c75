"""Pictures for pages: SVG elements in the colours that the page gives them.

A picture is drawn 360 units wide, the width of a telephone, with texts of 10 units: a page may show it larger, never
smaller. Its texts stay texts, in the reader's font; its colours are CSS variables, so that it follows light and dark.
"""

import io
import re
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

__all__ = [
    "INK",
    "LINE",
    "MUTED",
    "SERIES",
    "draw_key",
    "name_axes",
    "panel_axes",
    "panel_height",
    "rows_axes",
    "rows_height",
    "set_scale",
    "svg_of",
]

WIDTH = 360.0
"""Units of a picture from side to side; 72 are an inch."""

MARGIN = 8.0
"""Units left free on each side."""

TEXT, ROW, KEY = 10.0, 36.0, 14.0
"""Units: the height of a letter, of a row with its name above what it shows, of a line of a key."""

MOST_LETTERS = 44
"""Letters of a name; a longer one is cut in its middle, since its end tells plans apart as its start does."""

INK, MUTED, LINE = "#1f2328", "#656d76", "#d0d7de"
SERIES = ("#2a6f97", "#c2570c", "#2e7d4f", "#7b4d94", "#b03a48", "#8a6d00")
VARIABLES = {INK: "ink", MUTED: "muted", LINE: "line", **{hue: f"s{n}" for n, hue in enumerate(SERIES, 1)}}
"""Colour -> the page's variable that stands in for it."""

SETTINGS: Any = {"svg.fonttype": "none", "text.parse_math": False, "font.size": TEXT, "text.color": INK}
SVG = "{http://www.w3.org/2000/svg}"
HREF = "{http://www.w3.org/1999/xlink}href"


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
        axes.text(0, place - 0.35, shortened(name, MOST_LETTERS - 8 * bool(figures)), ha="left", **at)
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
        figure.text(80 / WIDTH, y, shortened(name), va="center")


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


def shortened(name: str, most: int = MOST_LETTERS) -> str:
    half = most // 2
    return name if len(name) <= most else f"{name[:half]}…{name[-half + 1 :]}"


def svg_of(name: str, height: float, draw: Callable[[Figure], None], title: str) -> str:
    """The picture as one element for a page: deterministic, its ids begin with its name, its colours are variables."""
    text = io.StringIO()
    with mpl.rc_context({**SETTINGS, "svg.hashsalt": name}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # the reader's fonts draw the text
        figure = Figure(figsize=(WIDTH / 72, height / 72))
        draw(figure)
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    root = ET.fromstring(text.getvalue())  # noqa: S314 - written by Matplotlib just now
    _clean(root, name)
    root.attrib = {"viewBox": root.attrib["viewBox"], "xmlns": SVG[1:-1], "role": "img", "aria-label": title}
    return ET.tostring(root, encoding="unicode")


def _clean(root: ET.Element, name: str) -> None:
    """Drop what a page has no use for, and make what is left safe to stand beside other pictures."""
    for parent in root.iter():
        for child in list(parent):
            if child.tag == f"{SVG}style" or "metadata" in child.tag:  # a style here would be the whole page's
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
    return f"var(--{VARIABLES[found[0]]}, {found[0]})" if found[0] in VARIABLES else found[0]
