"""What an examination gives: findings, each with the command that mends it, and how they are shown."""

import dataclasses
import enum
import json
import os
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tfperf.errors import escape_unprintable

if TYPE_CHECKING:
    from rich.table import Table

__all__ = [
    "Finding",
    "State",
    "apt_install",
    "findings_json",
    "findings_lines",
    "findings_table",
    "is_fit",
    "own_command",
    "pip_install",
    "summary",
]


class State(enum.StrEnum):
    """How it stands with one thing. Only `missing` and `unfit` are failures."""

    OK = "ok"
    """It is there, and fit."""
    MISSING = "missing"
    """tfperf needs it, and it is not there."""
    UNFIT = "unfit"
    """tfperf needs it, and it is there, but does not do."""
    NOTE = "note"
    """Worth knowing; tfperf runs all the same."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        subject: what it is, e.g. "NumPy".
        state: how it stands with it.
        found: what was found, in words.
        mend: one command that mends it, for a shell; "" where nothing needs mending, or no command can.

    Each text is made one line that no terminal takes for a command.
    """

    subject: str
    state: State
    found: str
    mend: str = ""

    def __post_init__(self) -> None:
        for field in ("subject", "found", "mend"):
            words = " ".join(str(getattr(self, field)).split())
            object.__setattr__(self, field, escape_unprintable(words))


_GLYPHS = {
    State.OK: ("✓", "green"),
    State.MISSING: ("✗", "red"),
    State.UNFIT: ("✗", "red"),
    State.NOTE: ("·", "yellow"),
}
"""State -> its glyph and colour; its word stands beside them."""


def is_fit(findings: Iterable[Finding]) -> bool:
    """Whether all that tfperf needs is there and does."""
    return not any(finding.state in (State.MISSING, State.UNFIT) for finding in findings)


def own_command(tool: str, *arguments: str) -> str:
    """A line to paste into a shell that runs `pip` or `tfperf` of this very Python, also outside its environment."""
    folder = os.path.dirname(sys.executable)  # noqa: PTH120  # not resolved: a venv's python is a link out of it
    found = shutil.which(tool)
    is_ours = found is not None and os.path.dirname(os.path.abspath(found)) == folder  # noqa: PTH100, PTH120
    start = [tool] if is_ours else [sys.executable or "python3", "-m", tool]
    return shlex.join([*start, *arguments])


def pip_install(*requirements: str) -> str:
    """The line that installs these requirements for this Python."""
    return own_command("pip", "install", *requirements)


def apt_install(*packages: str) -> str:
    """The line that installs packages of Debian or Ubuntu; "" on other systems."""
    if shutil.which("apt-get") is None:
        return ""
    return shlex.join([*(["sudo"] if os.geteuid() else []), "apt-get", "install", *packages])


def findings_table(findings: Sequence[Finding]) -> "Table":
    """A rich table with a row for each finding; no text in it is read as markup."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold", max_width=22)
    table.add_column(overflow="fold")
    for finding in findings:
        glyph, colour = _GLYPHS[finding.state]
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
