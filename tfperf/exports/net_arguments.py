"""The positional arguments of a net's call: of a subclass Keras keeps only shapes, and those of one argument alone."""

import contextlib
import inspect
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import keras

__all__ = ["FirstCalls", "arguments_from", "recording_first_calls", "specs_of_call"]

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
