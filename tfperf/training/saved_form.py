"""Layers and optimizers that compute faster and are saved as the Keras classes that they are."""

from collections.abc import Callable
from typing import Any, TypeVar

import keras

from tfperf.exports.keras_nets import PLAIN_CLASS
from tfperf.training.gradients import is_recorded

__all__ = ["form_name", "in_training", "plain_class", "saved_as", "with_class"]

Kind = TypeVar("Kind", bound=type)


def saved_as(plain: type) -> Callable[[Kind], Kind]:
    """Have a class saved under the name of the Keras class that it computes as: plain Keras then loads it.

    Args:
        plain: a class of `keras.layers` or `keras.optimizers`, one of the class's bases.
    """

    def name(fast: Kind) -> Kind:
        setattr(fast, PLAIN_CLASS, plain)
        fast._tfperf_name = fast.__name__  # type: ignore[attr-defined]
        home = "keras.layers" if issubclass(plain, keras.layers.Layer) else "keras.optimizers"
        fast.__module__, fast.__name__, fast.__qualname__ = home, plain.__name__, plain.__name__
        return fast

    return name


def plain_class(layer: Any) -> type:
    """The Keras class that a layer or an optimizer computes as: what `saved_as` named, else its own."""
    return getattr(type(layer), PLAIN_CLASS, type(layer))


def form_name(fast: type) -> str:
    """What a class that `saved_as` named is called in `tfperf.training`."""
    return str(fast._tfperf_name)  # type: ignore[attr-defined]


def in_training(layer: Any) -> bool:
    """Whether a layer is being called to be trained; itself it need not take an argument `training`.

    One that calls it was told so, which layers pass on, and a tape may record what it does.
    """
    return bool(getattr(layer._get_call_context(), "training", None)) and is_recorded()


def with_class(layer: Any, wanted: type) -> None:
    """Make a layer one of another class in place, which keeps its weights, its name and its place in nets."""
    object.__setattr__(layer, "__class__", wanted)
