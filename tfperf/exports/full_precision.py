"""A net of mixed precision, computed in float32."""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras

__all__ = ["computing_in_float32", "lowered_layers"]


def lowered_layers(net: keras.Model) -> list[Any]:
    """The layers whose policy computes in bfloat16 or float16, but for quantized ones, whose int8 is theirs."""
    low = [layer for layer in net._flatten_layers() if layer.compute_dtype in ("bfloat16", "float16")]
    return [layer for layer in low if not layer.dtype_policy.quantization_mode]


@contextlib.contextmanager
def computing_in_float32(net: keras.Model) -> Iterator[None]:
    """Have every layer compute in float32 meanwhile: what is traced or called within is the float32 net.

    Layers ask their policy each time they are called, so no copy of the net is needed, and nets of subclasses, which
    Keras cannot clone, are no exception. Weights in half precision are widened, exactly, where they are used.
    """
    lowered = [(layer, layer.dtype_policy) for layer in lowered_layers(net)]
    try:
        for layer, _ in lowered:
            layer.dtype_policy = "float32"
        yield
    finally:
        for layer, policy in lowered:
            layer.dtype_policy = policy
