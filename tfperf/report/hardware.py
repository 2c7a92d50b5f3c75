"""What a machine can give, as tables and as a picture."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.markup import escape
from rich.table import Table

from tfperf.errors import ResultFileError
from tfperf.files import writing_whole
from tfperf.hardware.caches import Cache
from tfperf.hardware.ceilings import Ceilings, ConvolutionRate, ProductRate, thread_words
from tfperf.hardware.ladder import Ladder
from tfperf.measure.words import format_bytes, format_seconds
from tfperf.report.tables import bare_table, with_notes

__all__ = [
    "arithmetic_table",
    "call_table",
    "ladder_table",
    "mark_caches",
    "memory_table",
    "scale_of_bytes",
    "write_ceilings_plot",
]

GIGA = 1e9

COLOURS = ("#2a6f97", "#c2570c", "#2e7d4f", "#7b4d94", "#b03a48", "#8a6d00")


def arithmetic_table(ceilings: Ceilings) -> Table:
    """One row for each type and operation: the best rate that was measured, and at which size, by threads."""
    table = bare_table("", *(thread_words(count) for count in ceilings.threads))
    kinds = dict.fromkeys(one.dtype for one in ceilings.products)
    for dtype in kinds:
        whole = [one for one in ceilings.products if one.dtype == dtype and one.rows is None]
        words = f"{dtype} products{' (XLA)' if any(one.compiled for one in whole) else ''}"
        table.add_row(escape(words), *_best(whole, ceilings.threads))
        for rows in sorted({one.rows for one in ceilings.products if one.dtype == dtype and one.rows}):
            thin = [one for one in ceilings.products if one.dtype == dtype and one.rows == rows]
            table.add_row(escape(f"  with {rows} row{'s' * (rows > 1)}"), *_best(thin, ceilings.threads))
        for kernel in sorted({one.kernel for one in ceilings.convolutions if one.dtype == dtype}):
            found = [one for one in ceilings.convolutions if one.dtype == dtype and one.kernel == kernel]
            table.add_row(escape(f"  convolutions {kernel} x {kernel}"), *_best(found, ceilings.threads))
    table.title, table.title_justify, table.title_style = f"Arithmetic, {ceilings.device}, at best", "left", "bold"
    refused = [f"{one.name}: {one.reason}" for one in ceilings.refusals]
    return with_notes(table, ["G: 10^9 operations a second; in float types FLOPs", *refused], [])


def memory_table(ceilings: Ceilings, caches: Sequence[Cache]) -> Table:
    """One row for each working set: bytes a second, by kind and threads, and the cache it fits; doubts below."""
    kinds = [
        (kind, count)
        for kind in dict.fromkeys(one.kind for one in ceilings.bandwidths)
        for count in sorted({one.threads for one in ceilings.bandwidths})
    ]
    table = bare_table("working set", "fits", *(f"{kind}, {thread_words(count)}" for kind, count in kinds))
    found = {(one.kind, one.threads, one.working_set): one.bytes_per_second for one in ceilings.bandwidths}
    for size in sorted({one.working_set for one in ceilings.bandwidths}):
        figures = [found.get((kind, count, size)) for kind, count in kinds]
        words = ["" if figure is None else f"{figure / GIGA:.4g} GB/s" for figure in figures]
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
        table.add_row(escape(one.name), format_seconds(one.seconds))
    disk, loopback, stream = (
        ceilings.disk_read_bytes_per_second,
        ceilings.loopback_seconds,
        ceilings.loopback_bytes_per_second,
    )
    table.add_row("disk, read", "not told" if disk is None else f"{disk / GIGA:.3g} GB/s")
    table.add_row("loopback, there and back", "not told" if loopback is None else format_seconds(loopback))
    table.add_row("loopback, in a stream", "not told" if stream is None else f"{stream / GIGA:.3g} GB/s")
    table.title, table.title_justify, table.title_style = "Calls, disk and loopback", "left", "bold"
    return table


def ladder_table(ladder: Ladder) -> Table:
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
    """Draw bandwidth over working set, and products over size, as the file's ending says: .svg or .png.

    Raises:
        ResultFileError: the file cannot be written there.
    """
    figure = Figure(figsize=(12, 5), dpi=120, layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_bandwidths(left, ceilings, caches)
    _draw_products(right, ceilings)
    figure.suptitle(f"Ceilings of this machine: {ceilings.environment.cpu}, {ceilings.device}".replace("$", "\\$"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with writing_whole(path) as file:
            figure.savefig(file, format=path.suffix[1:])
    except OSError as error:
        raise ResultFileError(f"cannot write the plot {path}: {error.strerror or error}") from error


def mark_caches(axes: Axes, caches: Sequence[Cache], at_top: bool = True) -> None:
    """A line where each cache ends, on an axis of bytes, with its name at the top or at the bottom."""
    for cache in caches:
        axes.axvline(cache.size, color="black", alpha=0.4, linewidth=1, linestyle=":")
        words = f"{cache.name}, {format_bytes(cache.size)}"
        axes.annotate(
            words, (cache.size, int(at_top)), (-3, -3 if at_top else 3), xycoords=("data", "axes fraction"),
            textcoords="offset points", rotation=90, ha="right", va="top" if at_top else "bottom", fontsize="small",
        )  # fmt: skip


def scale_of_bytes(axes: Axes, low: float, high: float) -> None:
    """A logarithmic axis of bytes, with a figure at every fourth power of two."""
    axes.set_xscale("log", base=2)
    powers = range(int(low).bit_length() - 1, int(high).bit_length(), 3)
    axes.set_xticks([2.0**power for power in powers], [format_bytes(2**power) for power in powers])
    axes.set_xlabel("working set")


def _draw_bandwidths(axes: Axes, ceilings: Ceilings, caches: Sequence[Cache]) -> None:
    styles = {"pointwise": "o-", "weights": "s--"}
    sizes = [one.working_set for one in ceilings.bandwidths]
    for kind, style in styles.items():
        for count, colour in zip(ceilings.threads, COLOURS, strict=False):
            points = sorted(
                (one.working_set, one.bytes_per_second / GIGA)
                for one in ceilings.bandwidths
                if (one.kind, one.threads) == (kind, count)
            )
            if points:
                label = f"{kind}, {thread_words(count)}"
                axes.plot(*zip(*points, strict=True), style, color=colour, label=label, markersize=4)
    mark_caches(axes, caches)
    if sizes:
        scale_of_bytes(axes, min(sizes), max(sizes))
    axes.set_ylim(bottom=0)
    axes.set_ylabel("GB/s")
    _finish(axes, "Bandwidth")


def _draw_products(axes: Axes, ceilings: Ceilings) -> None:
    for dtype, colour in zip(dict.fromkeys(one.dtype for one in ceilings.products), COLOURS, strict=False):
        for count, style in zip(ceilings.threads, ("o-", "s--", "^:", "v-."), strict=False):
            points = sorted(
                (one.size, one.flops_per_second / GIGA)
                for one in ceilings.products
                if (one.dtype, one.threads, one.rows) == (dtype, count, None)
            )
            if points:
                label = f"{dtype}, {thread_words(count)}"
                axes.plot(*zip(*points, strict=True), style, color=colour, label=label, markersize=4)
    axes.set_xscale("log", base=2)
    sizes = sorted({one.size for one in ceilings.products if one.rows is None})
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.set_xlabel("n, of a product n x n by n x n")
    axes.set_ylim(bottom=0)
    axes.set_ylabel("10^9 operations a second")
    _finish(axes, "Matrix products")


def _finish(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize="small")


def _best(rates: Sequence[ProductRate] | Sequence[ConvolutionRate], threads: Sequence[int]) -> list[str]:
    """The best rate of each number of threads, with its size."""
    words = []
    for count in threads:
        found = [one for one in rates if one.threads == count]
        best = max(found, key=lambda one: one.flops_per_second, default=None)
        words.append("" if best is None else f"{best.flops_per_second / GIGA:,.0f} G at {_size(best)}")
    return words


def _size(rate: ProductRate | ConvolutionRate) -> str:
    if isinstance(rate, ConvolutionRate):
        return f"{rate.channels} channels, {rate.positions} positions"
    return str(rate.size)


def _place(size: int, caches: Sequence[Cache]) -> str:
    """The smallest cache that holds it."""
    if not caches:
        return ""
    return next((cache.name for cache in caches if size <= cache.size), "memory")
