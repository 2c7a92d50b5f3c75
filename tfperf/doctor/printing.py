"""Findings on paper: a table for a terminal, lines for a file or a pipe, JSON for programs."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tfperf.doctor.finding import Finding, State, is_fit

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["findings_json", "findings_lines", "findings_table", "summary"]

_LOOKS = {
    State.OK: ("✓", "green"),
    State.MISSING: ("✗", "red"),
    State.UNFIT: ("✗", "red"),
    State.NOTE: ("·", "yellow"),
}
"""State -> its glyph and colour; its word stands beside them."""


def findings_table(findings: Sequence[Finding]) -> "Table":
    """A rich table with a row for each finding; no text in it is read as markup."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold", max_width=22)
    table.add_column(overflow="fold")
    for finding in findings:
        glyph, colour = _LOOKS[finding.state]
        words = Text(finding.found)
        if finding.mend:
            words.append(f"\nto mend: {finding.mend}", style="bold")
        table.add_row(Text(f"{glyph} {finding.state}", style=colour), Text(finding.subject), words)
    return table


def findings_lines(findings: Sequence[Finding]) -> str:
    """A line for each finding, and one more for each way to mend it; nothing is wrapped, so that grep finds all."""
    lines = []
    for finding in findings:
        lines.append(f"{finding.state:<8} {finding.subject}: {finding.found}")
        if finding.mend:
            lines.append(f"         to mend: {finding.mend}")
    return "\n".join(lines)


def findings_json(findings: Sequence[Finding]) -> str:
    """`{"fit": bool, "findings": [{"subject", "state", "found", "mend"}, ...]}`, in ASCII."""
    shape = {
        "fit": is_fit(findings),
        "findings": [{"subject": f.subject, "state": str(f.state), "found": f.found, "mend": f.mend} for f in findings],
    }
    return json.dumps(shape, indent=1)


def summary(findings: Sequence[Finding]) -> str:
    """One line: whether tfperf can run here, and how many findings are of each state."""
    counts = Counter(finding.state for finding in findings)
    numbers = ", ".join(f"{counts[state]} {state}" for state in State if counts[state])
    verdict = "fit" if is_fit(findings) else "not fit: mend what is missing or unfit"
    return f"{verdict} ({numbers})"
