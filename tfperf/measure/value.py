"""The form of everything that a result file keeps."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

__all__ = ["Name", "Text", "Value"]


class Value(BaseModel):
    """An immutable value that result files keep; when it is read, no field may be missing, unknown or mistyped."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


def _printable(text: str) -> str:
    """Refuse what could move the cursor or hide text when a terminal shows it."""
    if not text.isprintable():
        raise ValueError(f"expected printable characters only, found {text!r}")
    return text


Name = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_printable)]
"""What a measurement, a recipe or a data set is called."""

Text = Annotated[str, Field(max_length=4000), AfterValidator(_printable)]
"""A sentence for a person."""
