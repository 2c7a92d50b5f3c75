"""One net, computed in another precision than it was made for."""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras

__all__ = ["computing_in", "layers_to_switch"]

FLOATING = ("float32", "bfloat16", "float16")


def layers_to_switch(net: keras.Model, precision: str) -> list[Any]:
    """The layers that compute in another of the floating types, but for quantized ones, whose int8 is theirs."""
    others = [name for name in FLOATING if name != precision]
    layers = [layer for layer in net._flatten_layers() if layer.compute_dtype in others]
    return [layer for layer in layers if not layer.dtype_policy.quantization_mode]


@contextlib.contextmanager
def computing_in(net: keras.Model, precision: str) -> Iterator[None]:
    """Have every layer compute in float32, bfloat16 or float16 meanwhile: what is traced or called within is that net.

    Layers ask their policy each time they are called, so no copy of the net is needed, and nets of subclasses, which
    Keras cannot clone, are no exception. Weights keep their type, and are converted where they are used.
    """
    policy = precision if precision == "float32" else f"mixed_{precision}"
    switched = [(layer, layer.dtype_policy) for layer in layers_to_switch(net, precision)]
    try:
        for layer, _ in switched:
            layer.dtype_policy = policy
        yield
    finally:
        for layer, own in switched:
            layer.dtype_policy = own
