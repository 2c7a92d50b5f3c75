"""What a peer is given and what it makes of it. Imported where the peers run, so of the standard library and NumPy."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray

__all__ = ["Given", "Loaded"]


class Given(NamedTuple):
    """What the `load` of each peer's module takes."""

    net: str
    folder: Path
    """With weights.npz, inputs.npz and what the peer's converter wrote."""
    way: str
    """To use the framework, where there are several."""
    precision: str


class Loaded(NamedTuple):
    """What it returns."""

    call: Callable[[Any], NDArray[Any]]
    """From a prepared input to a NumPy array, which the next call may overwrite."""
    prepare: Callable[[NDArray[Any]], Any]
    """From an input as Keras takes it to what a user of the framework holds."""
    words: str
    """What it is."""
