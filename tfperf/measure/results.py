"""Result files: versioned JSON, written whole or not at all, read back strictly.

History of the format:

- 1: the first.
"""

import contextlib
import json
import stat
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import Field, ValidationError

from tfperf.errors import ResultFileError
from tfperf.files import writing_whole
from tfperf.measure.agreement import Agreement
from tfperf.measure.comparison import Comparison
from tfperf.measure.environment import Environment
from tfperf.measure.measurement import Measurement
from tfperf.measure.value import Name, Text, Value
from tfperf.measure.words import escape_unprintable

__all__ = ["FORMAT", "VERSION", "Fact", "Result", "format_of", "read_document", "read_result", "write_result"]

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
    created: str = Field(
        default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"), pattern=r"^[0-9T:.+Z-]{1,40}$"
    )
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


Kind = TypeVar("Kind", bound=Value)


def write_result(path: Path | str, result: Value) -> None:
    """Write a result, or another value that has a format and a version, whole or not at all. Folders are made.

    Raises:
        ResultFileError: the file cannot be written there.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with writing_whole(path) as file:
            file.write(result.model_dump_json(indent=1).encode() + b"\n")
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        raise ResultFileError(f"cannot write the result file {_shown(path)}: {_reason(error)}") from error


def read_result(path: Path | str) -> Result:
    """Read a result file, strictly.

    Raises:
        ResultFileError: the file is missing, too large, truncated, of another version, or not what tfperf
            writes. The message is one line.
    """
    return read_document(path, Result)


def read_document(path: Path | str, kind: type[Kind]) -> Kind:
    """Read a file of `write_result`, strictly.

    Args:
        kind: what it must hold; its fields `format` and `version` have defaults.

    Raises:
        ResultFileError: as `read_result`.
    """
    path = Path(path)
    content = _read_file(path)
    _check_envelope(path, content, kind.model_fields["format"].default, kind.model_fields["version"].default)
    try:
        result = kind.model_validate_json(content)
    except ValidationError as error:
        raise ResultFileError(f"{_shown(path)} is not a valid result file: {_first_fault(error)}") from error
    missing = next(_fields_left_out(result), None)
    if missing:
        raise ResultFileError(f"{_shown(path)} is not a valid result file: it lacks {missing}")
    return result


def format_of(path: Path | str) -> str | None:
    """The format that a result file names; None: it is none, and `read_document` says why."""
    with contextlib.suppress(ResultFileError, ValueError, RecursionError):
        document = json.loads(_read_file(Path(path)))
        name = document.get("format") if isinstance(document, dict) else None
        return name if isinstance(name, str) else None
    return None


def _read_file(path: Path) -> bytes:
    """The content of a regular file of bearable size."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ResultFileError(f"{_shown(path)} is not a result file: expected a regular file")
        if status.st_size > LARGEST_FILE:
            raise ResultFileError(
                f"{_shown(path)} is not a result file: expected at most {LARGEST_FILE:,} bytes, "
                f"found {status.st_size:,}"
            )
        return path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        raise ResultFileError(f"cannot read the result file {_shown(path)}: {_reason(error)}") from error


def _check_envelope(path: Path, content: bytes, kind: str, wanted: int) -> None:
    """Refuse what is no JSON, no result file, or one of another version, before looking at the rest."""
    try:
        document = json.loads(content, object_pairs_hook=_without_twins)
    except (ValueError, RecursionError) as error:
        words = "it is nested too deeply" if isinstance(error, RecursionError) else _shown(error)
        raise ResultFileError(f"{_shown(path)} is not a result file: {words}") from error
    if not isinstance(document, dict) or document.get("format") != kind:
        raise ResultFileError(f"{_shown(path)} is not a result file: expected the format {kind!r} in an object")
    version = document.get("version")
    if type(version) is not int:
        raise ResultFileError(f"{_shown(path)} is not a result file: expected a whole number as its version")
    if version != wanted:
        age = "an older" if version < wanted else "a newer"
        raise ResultFileError(
            f"{_shown(path)} was written by {age} tfperf: expected version {wanted}, found {_shown(version)}; "
            "measure again with this version"
        )


def _without_twins(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """An object of the document; refused where a key comes twice, since which one counts would be a guess."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a key comes twice in one object")
    return fields


def _fields_left_out(value: object) -> Iterator[str]:
    """Fields that the document does not have, and that a default would fill in."""
    if isinstance(value, Value):
        yield from (name for name in type(value).model_fields if name not in value.model_fields_set)
        yield from (name for _, field in value for name in _fields_left_out(field))
    elif isinstance(value, tuple) and value and isinstance(value[0], Value):
        yield from (name for item in value for name in _fields_left_out(item))


def _first_fault(error: ValidationError) -> str:
    """The first thing wrong, in one line."""
    fault = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(str(part) for part in fault["loc"])
    return _shown(f"at {place}: {fault['msg']}" if place else fault["msg"])


def _reason(error: OSError | ValueError) -> str:
    return getattr(error, "strerror", None) or str(error)


def _shown(text: object) -> str:
    """A part of a message that someone else wrote: in one line, harmless to a terminal, and not at length."""
    words = escape_unprintable(text)
    return words if len(words) <= 200 else words[:197] + "..."
