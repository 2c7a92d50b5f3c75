"""Numbers that a functional net holds beside its weights: another process that builds the net anew has others."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

__all__ = ["own_constants"]


def own_constants(net: Any) -> list[str]:
    """Name the layers and operations of a net that are called with arrays of floating-point numbers of its own.

    `Embedding(...)(ops.arange(64))` runs when the net is built: what it returns is a constant of the net, and the
    embedding's weights are none of the net's.

    Args:
        net: a Keras model; one that is not functional has none that can be seen.
    """
    return [operation.name for operation in _operations(net) if any(map(_holds_numbers, operation._inbound_nodes))]


def _operations(net: Any) -> list[Any]:
    """The layers and operations of a functional net, those of nets inside it too."""
    found = []
    for operation in getattr(net, "operations", None) or getattr(net, "layers", []):
        found.append(operation)
        if isinstance(operation, keras.Model):
            found.extend(_operations(operation))
    return found


def _holds_numbers(node: Any) -> bool:
    leaves = keras.tree.flatten((node.arguments.args, node.arguments.kwargs))
    arrays = [leaf for leaf in leaves if isinstance(leaf, tf.Tensor | np.ndarray)]
    return any(np.issubdtype(np.asarray(array).dtype, np.floating) and np.size(array) > 1 for array in arrays)
