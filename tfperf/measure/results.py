"""Result files: versioned JSON, written whole or not at all, read back strictly.

History of the format:

- 1: the first.
"""

import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field, ValidationError

from tfperf.errors import ResultFileError
from tfperf.files import writing_whole
from tfperf.measure.agreement import Agreement
from tfperf.measure.comparison import Comparison
from tfperf.measure.environment import Environment
from tfperf.measure.measurement import Measurement
from tfperf.measure.value import Name, Text, Value

__all__ = ["FORMAT", "VERSION", "Fact", "Result", "read_result", "write_result"]

FORMAT: Literal["tfperf result"] = "tfperf result"
"""What the field `format` of every result file says."""

VERSION: Literal[1] = 1
"""The version written; it rises with every change of the schema, with a line in the history above."""

LARGEST_FILE = 64 * 1024**2
"""Bytes; a file of so many samples was not written by tfperf."""

Fact = Text | bool | Annotated[int, Field(ge=-(2**63), lt=2**63)] | float
"""A figure or a word that is no duration: an accuracy, a size, a count."""


class Result(Value):
    """What one run found: measurements, comparisons, checks of the answers, and other facts. Immutable."""

    format: Literal["tfperf result"] = FORMAT
    version: Literal[1] = VERSION
    name: Name = Field(description="the recipe or command that wrote it")
    created: str = Field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"), max_length=40)
    dataset: Text | None = Field(default=None, description="the data set really used, and where it was found")
    environment: Environment = Field(default_factory=Environment.here)
    measurements: tuple[Measurement, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    agreements: tuple[Agreement, ...] = ()
    facts: dict[Name, Fact] = Field(default_factory=dict)
    meaning: tuple[Text, ...] = Field(default=(), description="what the figures mean, a sentence each")

    @property
    def runs(self) -> dict[str, list[Measurement]]:
        """Every measurement, those inside comparisons too, by name; several under one name are runs of it."""
        by_name: dict[str, list[Measurement]] = {}
        compared = (measurement for comparison in self.comparisons for measurement in comparison.measurements)
        for measurement in (*self.measurements, *compared):
            by_name.setdefault(measurement.name, []).append(measurement)
        return by_name


def write_result(path: Path | str, result: Result) -> None:
    """Write a result file, whole or not at all. Folders on the way are made.

    Raises:
        ResultFileError: the file cannot be written there.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with writing_whole(path) as file:
            file.write(result.model_dump_json(indent=1).encode() + b"\n")
    except OSError as error:
        raise ResultFileError(f"cannot write the result file {path}: {error.strerror or error}") from error


def read_result(path: Path | str) -> Result:
    """Read a result file, strictly.

    Raises:
        ResultFileError: the file is missing, too large, truncated, of another version, or not what tfperf
            writes. The message is one line.
    """
    path = Path(path)
    content = _read_file(path)
    _check_version(path, content)
    try:
        return Result.model_validate_json(content)
    except ValidationError as error:
        raise ResultFileError(f"{path} is not a valid result file: {_first_fault(error)}") from error


class _Envelope(BaseModel):
    """What a file of any version has."""

    format: str
    version: int


def _check_version(path: Path, content: bytes) -> None:
    """Refuse what is no result file, and one of another version, before looking at the rest."""
    try:
        envelope = _Envelope.model_validate_json(content, strict=True)
    except ValidationError as error:
        raise ResultFileError(f"{path} is not a result file: {_first_fault(error)}") from error
    if envelope.format != FORMAT:
        raise ResultFileError(f"{path} is not a result file: expected the format {FORMAT!r}, found another")
    if envelope.version != VERSION:
        age = "an older" if envelope.version < VERSION else "a newer"
        raise ResultFileError(
            f"{path} was written by {age} tfperf: expected version {VERSION}, found {envelope.version}; "
            "measure again with this version"
        )


def _read_file(path: Path) -> bytes:
    """The content of a regular file of bearable size."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ResultFileError(f"{path} is not a result file: expected a regular file")
        if status.st_size > LARGEST_FILE:
            raise ResultFileError(
                f"{path} is not a result file: expected at most {LARGEST_FILE:,} bytes, found {status.st_size:,}"
            )
        return path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        words = getattr(error, "strerror", None) or error
        raise ResultFileError(f"cannot read the result file {path}: {words}") from error


def _first_fault(error: ValidationError) -> str:
    """The first thing wrong, in one line, without repeating what a hostile file says at length."""
    fault = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(str(part) for part in fault["loc"])
    words = " ".join(f"at {place}: {fault['msg']}".split()) if place else " ".join(fault["msg"].split())
    return words if len(words) <= 200 else words[:197] + "..."
