"""What Keras does not tell of a net: what its call takes, the numbers that it holds, and how it computes otherwise."""

import contextlib
import inspect
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import keras
import numpy as np
import tensorflow as tf

__all__ = [
    "PLAIN_CLASS",
    "FirstCalls",
    "arguments_from",
    "computing_in",
    "faster_layers",
    "in_keras_form",
    "layers_to_switch",
    "own_constants",
    "recording_first_calls",
    "restoring",
    "specs_of_call",
]

FLOATING = ("float32", "bfloat16", "float16")

PLAIN_CLASS = "_tfperf_plain"
"""Where a class of `tfperf.training` says as which class of Keras it computes and is saved."""

FirstCalls = WeakKeyDictionary[keras.Model, list[Any]]
"""Net -> what `specs_of_call` tells of its first call."""


@contextlib.contextmanager
def recording_first_calls() -> Iterator[FirstCalls]:
    """Note what every net is first called with meanwhile, be it arrays or `keras.Input`."""
    first_calls: FirstCalls = WeakKeyDictionary()
    call = keras.Model.__call__  # inherited: Model has none of its own

    def noted(net: keras.Model, *args: Any, **kwargs: Any) -> Any:
        answer = call(net, *args, **kwargs)
        if net not in first_calls:
            first_calls[net] = []
            with contextlib.suppress(TypeError, ValueError):  # what cannot be noted is no mistake of the user's
                first_calls[net] = specs_of_call(net, args, kwargs)
        return answer

    keras.Model.__call__ = noted
    try:
        yield first_calls
    finally:
        del keras.Model.__call__


def specs_of_call(net: keras.Model, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
    """The positional arguments with tensors, as nests of `keras.InputSpec` of any batch.

    Several are named by their parameters; floats are of the type to which Keras casts them.

    Returns:
        One nest for each; empty where these arguments are not the first ones, or hold more than tensors.
    """
    signature = inspect.signature(net.call)
    of_call = {key: value for key, value in kwargs.items() if key in signature.parameters}  # Keras itself takes some
    given = signature.bind(*args, **of_call).arguments
    names = [name for name, value in given.items() if any(map(_is_tensor, keras.tree.flatten(value)))]
    positional = [name for name, one in signature.parameters.items() if one.kind is one.POSITIONAL_OR_KEYWORD]
    if names != positional[: len(names)] or not all(map(_is_tensor, keras.tree.flatten([given[one] for one in names]))):
        return []

    def spec(tensor: Any, name: str | None) -> keras.InputSpec:
        dtype = keras.backend.standardize_dtype(tensor.dtype)
        dtype = net.input_dtype if keras.backend.is_float_dtype(dtype) else dtype
        return keras.InputSpec(shape=(None, *tensor.shape[1:]), dtype=dtype, name=name)

    several = len(names) > 1
    return [keras.tree.map_structure(partial(spec, name=one if several else None), given[one]) for one in names]


def arguments_from(net: keras.Model, example: Any) -> list[Any]:
    """An example as positional arguments: as one, but for a call that needs as many as the example has, or its keys."""
    empty, kind = inspect.Parameter.empty, inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = inspect.signature(net.call).parameters.values()
    needed = [one.name for one in parameters if one.default is empty and one.kind is kind]
    if len(needed) > 1 and isinstance(example, Mapping) and set(example) == set(needed):
        return [example[name] for name in needed]
    if len(needed) > 1 and isinstance(example, list | tuple) and len(example) == len(needed):
        return list(example)
    return [example]


def _is_tensor(leaf: Any) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


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


def faster_layers(net: keras.Model) -> list[Any]:
    """The layers of the classes of `tfperf.training`, which compute otherwise than Keras's. Subclasses do not count."""
    return [layer for layer in net._flatten_layers() if PLAIN_CLASS in vars(type(layer))]


@contextlib.contextmanager
def in_keras_form(net: keras.Model) -> Iterator[None]:
    """Have the layers of `tfperf.training` be of the classes of Keras that they are saved as, meanwhile."""
    swapped = [(layer, type(layer)) for layer in faster_layers(net)]
    try:
        for layer, own in swapped:
            object.__setattr__(layer, "__class__", vars(own)[PLAIN_CLASS])
        yield
    finally:
        for layer, own in swapped:
            object.__setattr__(layer, "__class__", own)


@contextlib.contextmanager
def restoring(net: keras.Model) -> Iterator[None]:
    """Give all variables of a net the values back that they have now: weights, moving statistics, seeds."""
    values = [(variable, variable.numpy()) for variable in net.variables]
    try:
        yield
    finally:
        for variable, value in values:
            variable.assign(value)
