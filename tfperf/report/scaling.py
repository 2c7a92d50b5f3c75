"""What more workers would buy, as a table and as curves. Knows rows of plain figures only."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure
from rich.markup import escape
from rich.table import Table

from tfperf.report.plots import MUTED, SERIES, save
from tfperf.report.tables import bare_table

__all__ = ["ScaleRow", "draw_scaling", "scale_table", "write_scale_plot"]

COLOUR, PAYS = SERIES[:2]


class ScaleRow(NamedTuple):
    """One number of workers.

    Attributes:
        low, likely, high: examples a second of all workers.
        alone: examples a second of one worker.
        exposed: share of a step in which workers wait for gradients.
        bottleneck: what limits the step.
    """

    workers: int
    low: float
    likely: float
    high: float
    alone: float
    exposed: float
    bottleneck: str

    @property
    def efficiency(self) -> float:
        """Throughput as a share of that many workers alone."""
        return self.likely / (self.workers * self.alone)


def scale_table(rows: Sequence[ScaleRow]) -> Table:
    """One row for each number of workers."""
    table = bare_table("workers", "low", "examples/s", "high", "efficiency", "waiting", "limited by")
    for row in rows:
        figures = (f"{value:,.{0 if value >= 100 else 1}f}" for value in (row.low, row.likely, row.high))
        table.add_row(
            f"{row.workers:,}", *figures, f"{row.efficiency:.0%}", f"{row.exposed:.0%}", escape(row.bottleneck)
        )
    for column in table.columns[:-1]:
        column.justify = "right"
    return table


def draw_scaling(figure: Figure, rows: Sequence[ScaleRow], knee: int, title: str) -> None:
    """Draw throughput and efficiency against the number of workers."""
    workers = [row.workers for row in rows]
    left, right = figure.subplots(1, 2)
    left.plot(workers, [row.alone * row.workers for row in rows], "--", color=MUTED, label="every worker as one alone")
    left.fill_between(workers, [row.low for row in rows], [row.high for row in rows], color=COLOUR, alpha=0.2)
    left.plot(workers, [row.likely for row in rows], "o-", color=COLOUR, label="likely, between low and high")
    left.set_yscale("log")
    left.set_ylabel("examples/s")
    left.legend(fontsize="small")
    right.plot(workers, [row.efficiency for row in rows], "o-", color=COLOUR, label="efficiency")
    right.plot(workers, [row.exposed for row in rows], "s:", color=PAYS, label="share of a step spent waiting")
    right.set_ylim(0, 1.05)
    right.legend(fontsize="small")
    for axes in (left, right):
        axes.axvline(knee, color=PAYS, alpha=0.5)
        late = knee**2 > workers[0] * workers[-1]  # on the right half: the words go to the left of the line
        axes.annotate(
            f" pays up to {knee:,} ",
            (knee, 0.02),
            xycoords=("data", "axes fraction"),
            color=PAYS,
            ha="right" if late else "left",
        )
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.set_xlabel("workers")
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, parse_math=False)


def write_scale_plot(path: Path, rows: Sequence[ScaleRow], knee: int, title: str) -> None:
    """Write the curves as a PNG, whole or not at all.

    Raises:
        ResultFileError: the file cannot be written there.
    """
    save(path, lambda figure: draw_scaling(figure, rows, knee, title))
