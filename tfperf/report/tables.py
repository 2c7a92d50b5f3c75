"""What was measured, as tables for a terminal. Pure functions of results; names are never read as markup."""

from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text

from tfperf.measure import Comparison, Doubt, Environment, Measurement, Verdict
from tfperf.measure.regression import RegressionVerdict, TimeChange
from tfperf.measure.results import Result
from tfperf.measure.words import format_bytes, format_interval, format_ratio, format_seconds

__all__ = [
    "CORRECTION",
    "bare_table",
    "change_table",
    "comparison_table",
    "each_kind_once",
    "environment_rows",
    "environment_table",
    "measurement_table",
    "remarks",
    "summary_table",
    "with_notes",
]

CORRECTION = "Correction of the source: "
"""How a recipe begins a sentence that corrects its source."""

_COLOURS = {
    Verdict.FASTER: "green",
    Verdict.SLOWER: "red",
    RegressionVerdict.NO_REGRESSION: "green",
    RegressionVerdict.REGRESSION: "red",
}

NAME_LETTERS = 20
"""Letters of a name that stay on one line before a column is left out for it."""

GAP = 2
"""Spaces between two columns of a table without lines."""


def measurement_table(measurements: Sequence[Measurement]) -> Group:
    """One row for each measurement: time with its interval, first call, memory; its doubts below."""
    table = bare_table("", "median [95 %]", "first call", "peak memory")
    for m in measurements:
        table.add_row(
            escape(m.name), format_interval(m.interval), format_seconds(m.first_call_seconds), _memory_words(m)
        )
    return with_notes(table, [], each_kind_once([(m.name, doubt) for m in measurements for doubt in m.doubts]))


def comparison_table(comparison: Comparison) -> Group:
    """One row for each candidate, with its ratio against the first; first calls and doubts below."""
    first = comparison.measurements[0]
    table = bare_table("", "median [95 %]", "speed-up [99 %]", "")
    for m in comparison.measurements:
        ratio = None if m is first else comparison.ratio(first.name, m.name)
        table.add_row(
            escape(m.name),
            format_interval(m.interval),
            format_ratio(ratio.interval) if ratio else "1",
            _coloured(ratio.verdict) if ratio else "baseline",
        )
    doubts = [("", doubt) for doubt in comparison.doubts]
    doubts += [(m.name, doubt) for m in comparison.measurements for doubt in m.doubts]
    first_calls = ", ".join(f"{m.name} {format_seconds(m.first_call_seconds)}" for m in comparison.measurements)
    return with_notes(table, [f"first call: {first_calls}"], each_kind_once(doubts))


def change_table(changes: Iterable[TimeChange]) -> Table:
    """One row for each piece of work that two result files have in common."""
    table = bare_table("", "after / before [99 %]", "verdict")
    for change in changes:
        table.add_row(escape(change.name), format_ratio(change.seen), _coloured(change.verdict))
    return table


def summary_table(results: Sequence[Result]) -> Table:
    """What several recipes found, in their sentences; corrections of the source stay in their own output."""
    table = bare_table("recipe", "what it found")
    for result in results:
        found = [sentence for sentence in result.meaning if not sentence.startswith(CORRECTION)]
        table.add_row(escape(result.name), escape("\n".join(found)))
        table.add_section()
    return table


def environment_table(environment: Environment) -> Table:
    """The machine and the software, a row for each."""
    table = bare_table("", "")
    table.show_header = False
    for name, value in environment_rows(environment):
        table.add_row(escape(name), escape(value))
    return table


def environment_rows(environment: Environment) -> list[tuple[str, str]]:
    """The machine and the software: a name and words for each part."""
    values = environment.model_dump(exclude={"packages", "variables"})
    values["cpu_features"] = " ".join(environment.cpu_features)
    values["accelerators"] = ", ".join(environment.accelerators) or "none seen"
    values["memory_bytes"] = format_bytes(environment.memory_bytes)
    machine = {name.removesuffix("_bytes").replace("_", " "): value for name, value in values.items()}
    rows = {**machine, **environment.packages, **environment.variables}
    return [(name, "unknown" if value is None else str(value)) for name, value in rows.items()]


def bare_table(*headers: str) -> Table:
    """A table without lines, its figures whole; the first and the last column may be folded."""
    table = Table(box=None, pad_edge=False, header_style="bold", caption_justify="left", caption_style="dim")
    for number, header in enumerate(headers):
        table.add_column(header, overflow="fold", no_wrap=0 < number < len(headers) - 1)  # figures stay whole
    return table


def _memory_words(measurement: Measurement) -> str:
    memory = measurement.memory
    grown = f"{format_bytes(memory.resident)} (+{format_bytes(max(0, memory.resident - memory.resident_before))})"
    return grown if memory.device is None else f"{grown}, GPU {format_bytes(memory.device)}"


def _coloured(verdict: Verdict | RegressionVerdict) -> str:
    colour = _COLOURS.get(verdict, "yellow")
    return f"[{colour}]{verdict}[/{colour}]"


def with_notes(
    table: Table, notes: Sequence[str], doubts: Sequence[tuple[str, str]], droppable: Sequence[str] = ()
) -> Group:
    """The table with notes under it, then the doubts.

    Args:
        table: key figures.
        notes: plain sentences.
        doubts: (whom it concerns, or "", words).
        droppable: headers of columns that a narrow terminal is not shown, the first of them first.
    """
    _keep_words_whole(table)
    return Group(_Fitting(table, droppable) if droppable else table, *remarks(notes, doubts))


def remarks(notes: Sequence[str], doubts: Sequence[tuple[str, str]]) -> list[Text]:
    """Notes, then doubts, for below a table; a doubt is one line, which is cut where the terminal ends."""
    lines = [Text(note, style="dim") for note in notes]
    for names, words in doubts:
        told = f"doubt: {words} ({names})" if names else f"doubt: {words}"
        lines.append(Text(told, style="dim", no_wrap=True, overflow="ellipsis"))
    return lines


class _Fitting:
    """A table without as many of its less important columns as the terminal has no room for."""

    def __init__(self, table: Table, droppable: Sequence[str]) -> None:
        self._table, self._droppable = table, droppable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Show the table, and below it which columns are left out."""
        columns = list(self._table.columns)
        dropped: list[str] = []
        for header in self._droppable:
            if _comfortable_width(columns) <= options.max_width:
                break
            columns = [column for column in columns if column.header != header]
            dropped.append(header)
        fitting = bare_table(*(str(column.header) for column in columns))
        for cells in zip(*(column.cells for column in columns), strict=True):
            fitting.add_row(*cells)
        _keep_words_whole(fitting)
        first = fitting.columns[0]
        too_wide = _comfortable_width(fitting.columns) - options.max_width
        if too_wide > 0:  # a long name is folded; else the figures at the end would be cut off
            first.min_width = max(NAME_LETTERS, (first.min_width or 0) - too_wide)
        yield fitting
        if dropped:
            yield Text(f"This terminal is too narrow for more columns: {', '.join(dropped)}.", style="dim")


def _comfortable_width(columns: Sequence[Column]) -> int:
    """Letters that a table needs when its figures are whole and its first column is folded once or twice at most."""
    widths = []
    for column in columns:
        longest = max((cell_len(text) for text in _texts(column)), default=0)
        widths.append(longest if column.no_wrap else max(column.min_width or 0, min(longest, NAME_LETTERS)))
    return sum(widths) + GAP * (len(columns) - 1)


def _keep_words_whole(table: Table) -> None:
    """Make each column at least as wide as its longest word, so that a narrow terminal breaks between words only."""
    for column in table.columns:
        column.min_width = max((cell_len(word) for text in _texts(column) for word in text.split()), default=None)


def _texts(column: Column) -> list[str]:
    """What a column shows, without markup."""
    return [Text.from_markup(str(cell)).plain for cell in (column.header, *column.cells)]


def each_kind_once(doubts: Sequence[tuple[str, Doubt]], everyone: int = 0) -> list[tuple[str, str]]:
    """Group doubts of one kind: (the names it concerns, its words with its advice).

    Words that differ only in their figures become the name of the kind, so that a line says one thing.

    Args:
        doubts: each with whom it concerns; "": all.
        everyone: how many there are; what concerns as many, concerns "all". 0: they are named all the same.
    """
    kinds: dict[str, list[tuple[str, Doubt]]] = {}
    for name, doubt in doubts:
        kinds.setdefault(doubt.name, []).append((name, doubt))
    lines = []
    for kind, found in kinds.items():
        words = {doubt.words for _, doubt in found}
        what = words.pop() if len(words) == 1 else kind.replace("_", " ")
        names = [] if any(not name for name, _ in found) else [name for name, _ in found]
        whom = "all" if everyone and len(names) == everyone else "; ".join(names)
        lines.append((whom, f"{what}: {found[0][1].advice}"))
    return lines
