"""Options that hold several values, and errors of the system in one line."""

import typer

__all__ = ["error_words", "whole_numbers"]


def whole_numbers(option: str, text: str) -> tuple[int, ...]:
    """The whole numbers, 1 or more, of "1,8,32".

    Raises:
        typer.BadParameter: it is anything else.
    """
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise typer.BadParameter(f"expected {option} to be whole numbers with commas, as 1,32. Received: {text}")
    return tuple(int(part) for part in parts)


def error_words(error: Exception) -> str:
    """What a system's error says, with the file it is about."""
    return f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.strerror else str(error)
