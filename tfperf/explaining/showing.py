"""An explanation as a terminal shows it."""

from collections.abc import Iterator

from rich.markup import escape
from rich.table import Table

from tfperf.explaining.explanation import Explained, Explanation
from tfperf.explaining.words import prediction_words, technique_words, traces_words, xla_words
from tfperf.measure.words import format_bytes, format_seconds
from tfperf.report.tables import bare_table, with_notes

__all__ = ["layer_rows", "layer_table", "lines"]

COLUMNS = ("layer", "FLOPs", "bytes", "kernels", "measured", "predicted", "share", "bound by")

SMALL = 0.01
"""Share of the kernels' time under which layers are one row."""


def layer_rows(explained: Explained) -> list[tuple[str, ...]]:
    """A row for each layer in the order of the net; those that take next to nothing are one, and what no kernel takes.

    The last row is the whole call as a graph.
    """
    whole = sum(layer.seconds for layer in explained.layers) or 1.0
    small = [layer for layer in explained.layers if layer.seconds < SMALL * whole]
    shown = [layer for layer in explained.layers if layer not in small]
    rows = [
        _row(layer.name, layer.flops, layer.bytes, layer.kernels, layer.seconds, layer.predicted, whole, layer.bound)
        for layer in shown
    ]
    if small:
        flops, size, kernels = (sum(getattr(one, field) for one in small) for field in ("flops", "bytes", "kernels"))
        seconds, predicted = sum(one.seconds for one in small), sum(one.predicted for one in small)
        name = f"{len(small)} others, each under {SMALL:.0%}"
        rows.append(_row(name, flops, size, kernels, seconds, predicted, whole, ""))
    if (call := explained.call("graph")) is not None:
        rows.append(("between kernels", "", "", "", format_seconds(call.between), "", "", "overhead"))
        predicted_words = "" if call.predicted is None else format_seconds(call.predicted)
        whole_call = ("a call, as a graph", "", "", str(call.kernels), format_seconds(call.seconds), predicted_words)
        rows.append((*whole_call, "", call.bound))
    return rows


def _row(
    name: str, flops: int, size: int, kernels: int, seconds: float, predicted: float, whole: float, bound: str
) -> tuple[str, ...]:
    return (
        name, _count(flops), format_bytes(size), str(kernels), format_seconds(seconds), format_seconds(predicted),
        f"{seconds / whole:.1%}", bound,
    )  # fmt: skip


def _count(number: int) -> str:
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return str(number)


def layer_table(explained: Explained) -> Table:
    """The layers at one batch size."""
    table = bare_table(*COLUMNS)
    for row in layer_rows(explained):
        table.add_row(*map(escape, row))
    return with_notes(table, [prediction_words(explained)], [])


def lines(explanation: Explanation, explained: Explained) -> Iterator[str]:
    """What the figures at one batch size mean: verdicts, what would help, what was changed to see, XLA."""
    yield from explained.verdicts
    for technique in explained.techniques:
        yield f"would help: {technique_words(technique)}"
    if not explained.techniques:
        yield "no technique of the cookbook is predicted to help by more than a tenth"
    for one in explained.interventions:
        yield f"put to the test: {one.words}"
    yield xla_words(explained.xla)
    if explained is explanation.batches[-1]:
        yield traces_words(explanation)
