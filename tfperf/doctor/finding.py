"""What an examination gives: findings, each with the way to mend it."""

import dataclasses
import enum
from collections.abc import Iterable

from tfperf.errors import escape_unprintable

__all__ = ["Finding", "State", "is_fit", "one_line"]


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
            object.__setattr__(self, field, one_line(getattr(self, field)))


def is_fit(findings: Iterable[Finding]) -> bool:
    """Whether all that tfperf needs is there and does."""
    return not any(finding.state in (State.MISSING, State.UNFIT) for finding in findings)


def one_line(text: object) -> str:
    """The text in one line of printable characters: others as Python escapes them."""
    return escape_unprintable(" ".join(str(text).split()))
