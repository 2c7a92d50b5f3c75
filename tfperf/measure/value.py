"""The form of everything that a result file keeps."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

__all__ = ["Count", "Name", "Text", "Value", "check_name"]


class Value(BaseModel):
    """An immutable value that result files keep; when it is read, no field may be missing, unknown or mistyped."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


def _printable(text: str) -> str:
    """Refuse what could move the cursor or hide text when a terminal shows it."""
    if not text.isprintable():
        raise ValueError("expected printable characters only")
    return text


Name = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_printable)]
"""What a measurement, a recipe or a data set is called."""

Text = Annotated[str, Field(max_length=4000), AfterValidator(_printable)]
"""A sentence for a person."""

Count = Annotated[int, Field(ge=0, lt=2**63)]
"""A number of things or of bytes."""


def check_name(name: str) -> None:
    """Refuse what cannot be the name of a measurement.

    Raises:
        ValueError: it is empty, longer than 200 characters, not printable, or no string.
    """
    try:
        TypeAdapter(Name).validate_python(name, strict=True)
    except ValidationError as error:
        raise ValueError(f"expected a name of 1 to 200 printable characters. Received: name={name!r:.80}") from error
