"""An explanation as a terminal shows it."""

import os
from collections.abc import Iterator, Sequence

from rich.console import Group
from rich.markup import escape

from tfperf.explaining.explanation import Explained, Explanation, Layer
from tfperf.explaining.words import prediction_words, technique_words, traces_words, xla_words
from tfperf.hardware.counting.layers import OUTSIDE
from tfperf.measure.words import format_bytes, format_seconds
from tfperf.report.tables import bare_table, each_kind_once, remarks, with_notes

__all__ = ["advice_lines", "doubt_lines", "layer_rows", "layer_table"]

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


def _row(name: str, layers: Sequence[Layer], whole: float, bound: str) -> tuple[str, ...]:
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
