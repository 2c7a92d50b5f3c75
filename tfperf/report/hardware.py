"""What a machine can give, as tables and as a picture."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Group
from rich.markup import escape
from rich.table import Table

from tfperf.hardware.ceilings import Ceilings
from tfperf.hardware.ladder import Ladder
from tfperf.hardware.processor import Cache
from tfperf.measure.words import format_bytes, format_seconds
from tfperf.report.plots import SERIES, write_figure
from tfperf.report.tables import bare_table, with_notes
from tfperf.system import thread_words

__all__ = [
    "arithmetic_table",
    "call_table",
    "ladder_plot",
    "ladder_table",
    "memory_table",
    "write_ceilings_plot",
]

GIGA = 1e9

NOISY = "~: too noisy here, no two passes agree within 5 %"


def arithmetic_table(ceilings: Ceilings) -> Group:
    """One row for each type: the rate of its fastest product, by threads."""
    table = bare_table("", *(thread_words(count) for count in ceilings.threads))
    for dtype, rates in _peaks(ceilings).items():
        by = " (XLA)" if any(one.compiled for one in ceilings.products if one.dtype == dtype) else ""
        words = ["" if rate is None else _marked(f"{rate / GIGA:,.0f} G", sure) for rate, sure in rates]
        table.add_row(escape(f"{dtype} products{by}"), *words)
    table.title, table.title_justify, table.title_style = f"Arithmetic, {ceilings.device}, at best", "left", "bold"
    refused = [f"{one.name}: {one.reason}" for one in ceilings.refusals]
    sure = all(one.repeatable for one in (*ceilings.products, *ceilings.bandwidths, *ceilings.calls))
    sure = sure and ceilings.disk_repeatable and ceilings.loopback_repeatable
    notes = ["G: 10^9 operations a second; in float types FLOPs", *([] if sure else [NOISY])]
    return with_notes(table, [*notes, *refused], [])


def memory_table(ceilings: Ceilings, caches: Sequence[Cache]) -> Group:
    """One row for each working set: bytes a second, by kind and threads, and the cache it fits; doubts below."""
    kinds = [
        (kind, count)
        for kind in dict.fromkeys(one.kind for one in ceilings.bandwidths)
        for count in sorted({one.threads for one in ceilings.bandwidths})
    ]
    table = bare_table("working set", "fits", *(f"{kind}, {thread_words(count)}" for kind, count in kinds))
    found = {(one.kind, one.threads, one.working_set): one for one in ceilings.bandwidths}
    for size in sorted({one.working_set for one in ceilings.bandwidths}):
        figures = [found.get((kind, count, size)) for kind, count in kinds]
        words = ["" if one is None else _marked(_gigabytes(one.bytes_per_second), one.repeatable) for one in figures]
        table.add_row(format_bytes(size), _place(size, caches), *words)
    table.title, table.title_justify, table.title_style = "Memory, through TensorFlow", "left", "bold"
    notes = ["pointwise: each number read, and written in its place; weights: a matrix read once, for one row"]
    copies = (ceilings.to_device_bytes_per_second, ceilings.from_device_bytes_per_second)
    if None not in copies:
        to_device, from_device = copies
        notes += [f"copies: {(to_device or 0) / GIGA:.4g} GB/s to the device, {(from_device or 0) / GIGA:.4g} from it"]
    return with_notes(table, notes, [("", str(doubt)) for doubt in ceilings.doubts])


def call_table(ceilings: Ceilings) -> Table:
    """What each kind of call costs, and how far disk and loopback are."""
    table = bare_table("", "")
    table.show_header = False
    for one in ceilings.calls:
        table.add_row(escape(one.name), _marked(format_seconds(one.seconds), one.repeatable))
    disk, loopback, stream = (
        ceilings.disk_read_bytes_per_second,
        ceilings.loopback_seconds,
        ceilings.loopback_bytes_per_second,
    )
    for name, words, sure in (
        ("disk, read", disk and _gigabytes(disk), ceilings.disk_repeatable),
        ("loopback, there and back", loopback and format_seconds(loopback), ceilings.loopback_repeatable),
        ("loopback, in a stream", stream and _gigabytes(stream), ceilings.loopback_repeatable),
    ):
        table.add_row(name, _marked(words, sure) if words else "not told")
    table.title, table.title_justify, table.title_style = "Calls, disk and loopback", "left", "bold"
    return table


def ladder_table(ladder: Ladder) -> Group:
    """One row for each working set: how far a number at a random place is, and one in a burst."""
    table = bare_table("working set", "fits", "random", "in a burst, 8 bytes")
    for one in ladder.accesses:
        place = _place(one.working_set, ladder.caches)
        table.add_row(
            format_bytes(one.working_set), place, format_seconds(one.random_seconds), format_seconds(one.burst_seconds)
        )
    table.title, table.title_justify, table.title_style = "Latency ladder, compiled code", "left", "bold"
    scalar, vector = format_seconds(ladder.scalar_seconds), format_seconds(ladder.vector_seconds)
    notes = [f"a float32 multiplied and added to: {scalar} one by one, {vector} in vectors"]
    for way in ladder.sharing:
        same, own = format_seconds(way.same_line_seconds), format_seconds(way.own_line_seconds)
        notes.append(f"two threads that count, {way.way}: {same} with both numbers in one cache line, {own} in two")
    return with_notes(table, notes, [("", str(doubt)) for doubt in ladder.doubts])


def write_ceilings_plot(path: Path, ceilings: Ceilings, caches: Sequence[Cache]) -> None:
    """Draw bandwidth over working set, and the fastest products, as the file's ending says: .svg or .png.

    Raises:
        ResultFileError: the file cannot be written there.
    """
    figure = Figure(figsize=(12, 5), dpi=120, layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_bandwidths(left, ceilings, caches)
    _draw_products(right, ceilings)
    figure.suptitle(f"Ceilings of this machine: {ceilings.environment.cpu}, {ceilings.device}".replace("$", "\\$"))
    write_figure(path, figure, path.suffix[1:])


def ladder_plot(axes: Axes, ladder: Ladder, marks: Mapping[str, float]) -> None:
    """Draw latency over working set, at random and in a burst, and where each cache ends.

    Args:
        marks: words -> seconds, for each a horizontal line.
    """
    sizes = [one.working_set for one in ladder.accesses]
    for name, style, seconds in (
        ("at random", "o-", [one.random_seconds for one in ladder.accesses]),
        ("8 bytes of a burst", "s-", [one.burst_seconds for one in ladder.accesses]),
    ):
        axes.plot(sizes, [one * 1e9 for one in seconds], style, label=name, markersize=4)
    for words, height in marks.items():
        axes.axhline(height * 1e9, color="tab:red", linestyle="--", linewidth=1)
        axes.annotate(words, (sizes[0], height * 1e9), (0, 3), textcoords="offset points", color="tab:red")
    axes.set_yscale("log")
    axes.set_ylim(bottom=min(one.burst_seconds for one in ladder.accesses) * 1e9 / 8)  # room for the caches' names
    _mark_caches(axes, ladder.caches, at_top=False)
    _scale_of_bytes(axes, sizes[0], sizes[-1])
    axes.set_ylabel("ns")
    _finish(axes, "How far memory is")


def _mark_caches(axes: Axes, caches: Sequence[Cache], at_top: bool = True) -> None:
    """A line where each cache ends, on an axis of bytes, with its name at the top or at the bottom."""
    for cache in caches:
        axes.axvline(cache.size, color="black", alpha=0.4, linewidth=1, linestyle=":")
        words = f"{cache.name}, {format_bytes(cache.size)}"
        axes.annotate(
            words, (cache.size, int(at_top)), (-3, -3 if at_top else 3), xycoords=("data", "axes fraction"),
            textcoords="offset points", rotation=90, ha="right", va="top" if at_top else "bottom", fontsize="small",
        )  # fmt: skip


def _scale_of_bytes(axes: Axes, low: float, high: float) -> None:
    """A logarithmic axis of bytes, with a figure at every fourth power of two."""
    axes.set_xscale("log", base=2)
    powers = range(int(low).bit_length() - 1, int(high).bit_length(), 3)
    axes.set_xticks([2.0**power for power in powers], [format_bytes(2**power) for power in powers])
    axes.set_xlabel("working set")


def _draw_bandwidths(axes: Axes, ceilings: Ceilings, caches: Sequence[Cache]) -> None:
    styles = {"pointwise": "o-", "weights": "s--"}
    sizes = [one.working_set for one in ceilings.bandwidths]
    for kind, style in styles.items():
        for count, colour in zip(ceilings.threads, SERIES, strict=False):
            points = sorted(
                (one.working_set, one.bytes_per_second / GIGA)
                for one in ceilings.bandwidths
                if (one.kind, one.threads) == (kind, count)
            )
            if points:
                label = f"{kind}, {thread_words(count)}"
                axes.plot(*zip(*points, strict=True), style, color=colour, label=label, markersize=4)
    _mark_caches(axes, caches)
    if sizes:
        _scale_of_bytes(axes, min(sizes), max(sizes))
    axes.set_ylim(bottom=0)
    axes.set_ylabel("GB/s")
    _finish(axes, "Bandwidth")


def _draw_products(axes: Axes, ceilings: Ceilings) -> None:
    """A group of bars for each type, a bar for each number of threads."""
    peaks, counts = _peaks(ceilings), ceilings.threads
    width = 0.8 / len(counts)
    for number, (count, colour) in enumerate(zip(counts, SERIES, strict=False)):
        places = [group + (number - (len(counts) - 1) / 2) * width for group in range(len(peaks))]
        heights = [(rates[number][0] or 0.0) / GIGA for rates in peaks.values()]
        bars = axes.bar(places, heights, width * 0.9, color=colour, label=thread_words(count))
        axes.bar_label(bars, [f"{height:,.0f}" if height else "" for height in heights], padding=2, fontsize="small")
    axes.set_xticks(range(len(peaks)), list(peaks))
    axes.set_ylabel("10^9 operations a second")
    _finish(axes, "Matrix products, at best")


def _peaks(ceilings: Ceilings) -> dict[str, list[tuple[float | None, bool]]]:
    """By type the rates of the fastest products, one for each number of threads, and whether they are repeatable.

    A rate is None where none was measured.
    """

    def peak(dtype: str, threads: int) -> tuple[float | None, bool]:
        rates = [one for one in ceilings.products if (one.dtype, one.threads) == (dtype, threads)]
        best = max(rates, key=lambda one: one.flops_per_second, default=None)
        return (None, True) if best is None else (best.flops_per_second, best.repeatable)

    dtypes = dict.fromkeys(one.dtype for one in ceilings.products)
    return {dtype: [peak(dtype, count) for count in ceilings.threads] for dtype in dtypes}


def _gigabytes(bytes_per_second: float) -> str:
    return f"{bytes_per_second / GIGA:.4g} GB/s"


def _marked(words: str, repeatable: bool) -> str:
    return words if repeatable else f"~{words}"


def _finish(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left")
    axes.grid(alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize="small")


def _place(size: int, caches: Sequence[Cache]) -> str:
    """The smallest cache that holds it."""
    if not caches:
        return ""
    return next((cache.name for cache in caches if size <= cache.size), "memory")
