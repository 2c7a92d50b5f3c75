"""What the log of a build says: how far it is, and in one line why it failed."""

import re
from collections.abc import Iterable

__all__ = ["first_error", "step_of"]

_STEP = re.compile(r"^\s*\[\s*(\d+)%\] (?:Building|Linking) .*?([^/\s]+)$")

_TELLING = (
    re.compile(r"No space left on device"),
    re.compile(r"Killed signal terminated program|internal compiler error"),
    re.compile(r"DO NOT MATCH THE HASHES"),
    re.compile(r"^\s*\S+:\d+(?::\d+)?: (?:fatal )?error: |\S+\(\d+\): error: "),
    re.compile(r"^\s*\S*(?:g\+\+|gcc|clang\S*|nvcc|ld)\s*(?:: fatal error|: error|fatal\s+:)"),
    re.compile(r"undefined reference to|cannot find -l"),
    re.compile(r"^\s*CMake Error"),
    re.compile(r"^\s*(?:ERROR|error): "),
)
"""Most telling first: of two errors in a log, the one whose kind stands higher is the cause."""

_LONGEST = 240


def step_of(line: str) -> tuple[int, str] | None:
    """(percent done, file being made) if the line is make's report of a step, else None."""
    found = _STEP.match(line)
    if found is None:
        return None
    name = re.sub(r"\.(?:o|a)$", "", found[2])
    return int(found[1]), name


def first_error(lines: Iterable[str]) -> str:
    """The line of a failed build's log that says why, shortened to one that can be read."""
    lines = [line.strip() for line in lines if line.strip()]
    for telling in _TELLING:
        for number, line in enumerate(lines):
            if telling.search(line):
                return _readable(line if not line.startswith("CMake Error") else " ".join(lines[number : number + 2]))
    return _readable(lines[-1]) if lines else "it said nothing"


def _readable(line: str) -> str:
    line = re.sub(r"/\S*/(?=[^/\s]+:\d)", "", line)  # the temporary folder before a source file's name
    if "Killed signal terminated program" in line:
        line += " (out of memory? --jobs 1 needs the least)"
    if "DO NOT MATCH THE HASHES" in line:
        line = "the source distribution that pip found is not the known one: its SHA-256 differs"
    return line if len(line) <= _LONGEST else line[:_LONGEST] + "..."
