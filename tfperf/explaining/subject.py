"""What is explained: a model as functions of tensors, and the names of its layers."""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras

from tfperf.exports.opening import open_model
from tfperf.exports.servable import Servable
from tfperf.hardware.counting.tracing import forward_pass, training_pass

__all__ = ["Subject", "read_subject"]


class Subject(NamedTuple):
    """The model as functions of tensors by position."""

    servable: Servable
    function: Callable[..., Any]
    eager: Callable[..., Any] | None
    training: bool
    layers: tuple[str, ...]


def read_subject(model: Any, training: bool, signature: str | None, seed: int) -> Subject:
    """Look at a model.

    Args:
        model: a `keras.Model`, or what the command line takes.
        training: forward and backward, in place of forward alone.
        signature, seed: as `open_model` takes them.

    Raises:
        ExportError: there is no such model, or it cannot be traced.
        HardwareError: it cannot be trained.
        TypeError: neither a string nor a Keras model.
    """
    if isinstance(model, str):
        servable = open_model(model, signature=signature, seed=seed)
    elif isinstance(model, keras.Model):
        servable = Servable.from_net(model)
    else:
        raise TypeError(f"expected a keras.Model, or what names one. Received: {type(model).__name__}")
    net, pack = servable.net, servable.pack
    if training:
        function = training_pass(servable)
        return Subject(servable, function, function, True, _layer_names(net))
    eager = None if net is None else lambda *tensors: net(*pack(tensors), training=False)
    return Subject(servable, forward_pass(servable), eager, False, _layer_names(net) if net is not None else ())


def _layer_names(net: Any) -> tuple[str, ...]:
    """The layers of a net; in place of nets within it, theirs."""
    names: list[str] = []
    for layer in net.layers:
        inner = _layer_names(layer) if isinstance(layer, keras.Model) else ()
        names += inner or (layer.name,)
    return tuple(dict.fromkeys(names))
