"""A built model in half precision, as if it had been built under such a policy."""

from typing import Any

import keras

from tfperf.training import looping

__all__ = ["layers_to_change", "use_mixed_precision"]

PASSED = (keras.layers.Activation, keras.layers.Softmax, keras.layers.Reshape, keras.layers.Flatten)
"""Layers without weights: where one of these gives an output, the layer before it is exact too, as with operations
that are no layers."""


def use_mixed_precision(model: keras.Model, policy: str = "mixed_bfloat16") -> keras.Model:
    """Have the layers of a built model compute in half precision, in place; their weights stay in float32.

    A layer that has another policy than float32 keeps it. The layers that give the model's outputs stay in float32, and
    so do the layers within them, as the logits of a loss must: those of a functional or sequential model are found, a
    subclassed model does not say which they are, and its loss gets half-precision outputs, which Keras casts to
    float32. The model is saved with these policies, and plain Keras loads it.

    Args:
        model: built; compiled or not.
        policy: "mixed_bfloat16" or "mixed_float16". The latter needs a `keras.optimizers.LossScaleOptimizer`.

    Returns:
        The same model.

    Raises:
        ValueError: another policy, or the model is not built.
    """
    wanted = keras.dtype_policies.get(policy)
    if wanted.variable_dtype != "float32" or wanted.compute_dtype not in ("bfloat16", "float16"):
        raise ValueError(f"expected mixed_bfloat16 or mixed_float16. Received: {policy}")
    if not model.built:
        raise ValueError(f"expected a built model; call '{model.name}' on a batch first")
    for layer in layers_to_change(model):
        layer.dtype_policy = wanted
    looping.forget(model)  # what was traced with the types as they were
    return model


def layers_to_change(model: keras.Model) -> list[keras.Layer]:
    """List the layers of a built model that `use_mixed_precision` changes, each before those within it."""
    exact = {id(layer) for output in _output_layers(model) for layer in output._flatten_layers()}
    layers = model._flatten_layers()
    return [layer for layer in layers if layer.dtype_policy.name == "float32" and id(layer) not in exact]


def _output_layers(model: Any) -> list[Any]:
    """The layers that give a model's outputs, as far as it says."""
    found, seen = [], set()
    outputs = getattr(model, "outputs", None) or []
    waiting = [tensor for tensor in keras.tree.flatten(outputs) if hasattr(tensor, "_keras_history")]
    while waiting:
        operation, node, _ = waiting.pop()._keras_history
        if (id(operation), node) in seen:
            continue
        seen.add((id(operation), node))
        passes = isinstance(operation, PASSED) or not isinstance(operation, keras.Layer)  # a model is a layer
        if isinstance(operation, keras.Model):
            inner = _output_layers(operation)
            passes = any(isinstance(layer, keras.layers.InputLayer) for layer in inner)
            found += inner
        elif isinstance(operation, keras.Layer):
            found.append(operation)
        if passes:
            waiting += operation._inbound_nodes[node].input_tensors
    return found
