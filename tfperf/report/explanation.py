"""An explanation as it is shown: lines and tables for a terminal, and one HTML file that needs nothing else."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from markupsafe import Markup
from rich.console import Group
from rich.markup import escape

from tfperf.explaining.explanation import BIG, NEAR, Explained, Explanation, LayerTime, Technique, Xla
from tfperf.explaining.training_step import step_words
from tfperf.hardware.counting.work import OUTSIDE
from tfperf.measure.words import escape_unprintable, format_bytes, format_ratio, format_seconds, plain_ratio
from tfperf.report.page import TEMPLATES
from tfperf.report.plots import check_target, write_target
from tfperf.report.roofline import points_of, roofline_plot
from tfperf.report.tables import bare_table, each_kind_once, environment_rows, remarks, with_notes

__all__ = [
    "advice_lines",
    "check_page_path",
    "doubt_lines",
    "explanation_page",
    "layer_rows",
    "layer_table",
    "traces_words",
    "write_page",
]

COLUMNS = ("layer", "FLOPs", "bytes", "kernels", "measured", "predicted", "at best", "share", "bound by")

ON_TERMINAL = ("layer", "kernels", "measured", "predicted", "at best", "share", "bound by")
"""Those that fit a terminal of 80 columns; the page and the result file have all."""

MOST_LAYERS = 10
"""Rows of layers on a terminal, the largest."""

LONG_BEGINNING = 8
"""Letters from which on a beginning that all layers' names share is not shown again and again."""

SMALL = 0.01
"""Share of the kernels' time under which layers are one row."""


def layer_rows(explained: Explained, most: int | None = None) -> list[tuple[str, ...]]:
    """Give a row for each layer in the net's order, one for all small layers, and one for the time between kernels.

    The last row is the whole call as a graph.

    Args:
        explained: one batch size.
        most: rows of layers, the largest; None: all that take at least a hundredth of the time.
    """
    whole = sum(layer.seconds for layer in explained.layers) or 1.0
    largest = sorted(explained.layers, key=lambda layer: -layer.seconds)[:most]
    shown = [layer for layer in explained.layers if layer in largest and layer.seconds >= SMALL * whole]
    small = [layer for layer in explained.layers if layer not in shown]
    rows = [_row(layer.name, [layer], whole, layer.bound) for layer in shown]
    if small:
        under = max(SMALL, max(layer.seconds for layer in small) / whole)
        rows.append(_row(f"{len(small)} others, each at most {under:.0%}", small, whole, ""))
    if (call := explained.call("graph")) is not None:
        rows.append(("between kernels", "", "", "", format_seconds(call.between), "", "", "", "overhead"))
        predicted_words = "" if call.predicted is None else format_seconds(call.predicted)
        whole_call = ("a call, as a graph", "", "", str(call.kernels), format_seconds(call.seconds), predicted_words)
        rows.append((*whole_call, "", "", call.bound))
    return rows


def _row(name: str, layers: Sequence[LayerTime], whole: float, bound: str) -> tuple[str, ...]:
    """Layers together, of which the kernels take so many seconds as a whole."""
    flops, size, kernels = (sum(getattr(one, field) for one in layers) for field in ("flops", "bytes", "kernels"))
    times = [sum(getattr(one, field) for one in layers) for field in ("seconds", "predicted", "at_best")]
    counted = (_count(flops), format_bytes(size), str(kernels))
    return (name, *counted, *map(format_seconds, times), f"{times[0] / whole:.1%}", bound)


def _count(number: int) -> str:
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return str(number)


def layer_table(explained: Explained) -> Group:
    """Show the largest layers at one batch size, in a table for a terminal."""
    table, notes = bare_table(*ON_TERMINAL), [prediction_words(explained)]
    if beginning := _common_beginning([layer.name for layer in explained.layers if layer.name != OUTSIDE]):
        notes.insert(0, f"The names of layers are shown without {beginning}.")
    for name, *others in layer_rows(explained, MOST_LAYERS):
        cells = dict(zip(COLUMNS, (name.removeprefix(beginning), *others), strict=True))
        table.add_row(*(escape(cells[column]) for column in ON_TERMINAL))
    return with_notes(table, notes, [], droppable=("kernels", "at best"))


def _common_beginning(names: Sequence[str]) -> str:
    """What all of several names begin with, to the end of a word; "" where that is short."""
    beginning = os.path.commonprefix(list(names))  # noqa: RUF071  # names, not paths
    beginning = beginning[: max(beginning.rfind("_"), beginning.rfind("/")) + 1]
    return beginning if len(names) > 1 and len(beginning) >= LONG_BEGINNING else ""


def advice_lines(explanation: Explanation, explained: Explained) -> Iterator[str]:
    """What would help, what was changed to test the verdicts, and what XLA and tf.function make of the model."""
    if explained.step is not None:
        yield from step_words(explained.step)
    for technique in explained.techniques:
        yield f"would help: {technique_words(technique)}"
    if not explained.techniques:
        yield "no technique of the cookbook is predicted to help by more than a tenth"
    for one in explained.interventions:
        yield f"put to the test: {one.words}"
    yield xla_words(explained.xla)
    if explained is explanation.batches[-1]:
        yield traces_words(explanation)


def doubt_lines(explanation: Explanation) -> Group:
    """The reasons to trust it less, one line for each kind, cut where the terminal ends."""
    return Group(*remarks([], each_kind_once([("", doubt) for doubt in explanation.doubts])))


def prediction_words(explained: Explained) -> str:
    """How good the predictions of the layers' times are."""
    big = explained.big_layers
    near = f"{explained.near} of {len(big)} layers above {BIG:.0%} of the kernels' time are predicted within {NEAR:.0%}"
    if not big:
        near = f"no layer takes more than {BIG:.0%} of the kernels' time"
    return (
        f"{near[0].upper()}{near[1:]}. Predicted: each kernel alone, its weights as far away as in the net. At best: "
        "what this machine's peak and bandwidth allow."
    )


def technique_words(technique: Technique) -> str:
    """A technique with its gain: predicted, and measured where it was tried."""
    unit = "a call" if technique.batch is None else "an example"
    tried = "" if technique.measured is None else f", {format_ratio(technique.measured.interval)} measured"
    return (
        f"{technique.recipe}: {plain_ratio(technique.gain)}x predicted{tried}, from {format_seconds(technique.before)} "
        f"{unit} ({technique.against}) to {format_seconds(technique.predicted)} ({technique.way}). {technique.words}"
    )


def xla_words(xla: Xla) -> str:
    """Whether XLA compiles it, and what it fuses."""
    if not xla.compiled:
        return f"XLA: {xla.reason}"
    if xla.reason:
        return f"XLA compiles it, with {xla.fusions} fusions; its kernels cannot be counted: {xla.reason}"
    return (
        f"XLA compiles {xla.operations} operations into {xla.kernels} kernels, {xla.fusions} of them fusions; it moves "
        f"{format_bytes(xla.bytes_after)} instead of {format_bytes(xla.bytes_before)}"
    )


def traces_words(explanation: Explanation) -> str:
    """How often a function of it was traced."""
    sizes, times = len(explanation.batches), explanation.traces
    need = "once for each shape, as it should be" if times == sizes else "more often than needed"
    return f"tf.function traced it {times} time{'s' * (times != 1)} for {sizes} batch size{'s' * (sizes != 1)}, {need}"


def explanation_page(explanation: Explanation) -> str:
    """The explanation as one HTML document; names are text, whatever they hold."""
    first = explanation.batches[0]
    return TEMPLATES.get_template("explanation.html.j2").render(
        explanation=explanation,
        answer=first.verdicts[0] if first.verdicts else "",
        columns=COLUMNS,
        parts=[
            {
                "batch": explained.batch,
                "lines": map(escape_unprintable, (*explained.verdicts, *advice_lines(explanation, explained))),
                "rows": [(escape_unprintable(name), cells) for name, *cells in layer_rows(explained)],
                "plot": Markup(  # noqa: S704 - our own picture
                    roofline_plot(points_of(explained), explanation.roofs, f"roofline_{explained.batch}") or ""
                ),
            }
            for explained in explanation.batches
        ],
        doubts=[("", str(doubt)) for doubt in explanation.doubts],
        environment=environment_rows(explanation.environment),
    )


def check_page_path(path: Path) -> None:
    """Refuse a place where no page can be written, before minutes of work are spent on it.

    Raises:
        ResultFileError: its ending is not .html, or it cannot be written there.
    """
    check_target(path, "report", [".html"])


def write_page(path: Path, explanation: Explanation) -> None:
    """Write the page, whole or not at all. Folders are made.

    Raises:
        ResultFileError: the ending is not .html, or the file cannot be written there.
    """
    check_page_path(path)
    write_target(path, "report", explanation_page(explanation).encode())
