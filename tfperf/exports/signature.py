"""What a net takes and gives: named tensors, in one order, whatever nest of them its Python call takes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfperf.measure.value import Name, Value

__all__ = ["SIGNATURE_NAME", "Signature", "TensorForm", "flat_arrays"]

SIGNATURE_NAME = "serving_default"
"""What TensorFlow Serving and other loaders ask for unless they are told another."""


class TensorForm(Value):
    """Name, shape and type of one input or output."""

    name: Name
    shape: tuple[int | None, ...]
    """None: any size, as the batch in front."""
    dtype: str
    """The type's name in NumPy and TensorFlow: "float32", "int32", "bool", "string", ..."""

    def __str__(self) -> str:
        sizes = ", ".join("any" if size is None else str(size) for size in self.shape)
        return f"{self.name} ({sizes}) {self.dtype}"

    def with_batch(self, batch: int | None) -> tuple[int | None, ...]:
        """Its shape, with a batch in front that is open replaced by another."""
        return (batch, *self.shape[1:]) if self.shape[:1] == (None,) else self.shape

    def takes(self, array: NDArray[Any]) -> bool:
        """Whether the array has this type and a shape that fits."""
        fits = len(array.shape) == len(self.shape) and all(
            size in (None, given) for size, given in zip(self.shape, array.shape, strict=True)
        )
        return fits and (array.dtype.kind in "OSU" if self.dtype == "string" else array.dtype == self.dtype)


class Signature(Value):
    """The inputs and outputs of a net, each with its name, in the order in which runners take and give them."""

    inputs: tuple[TensorForm, ...]
    outputs: tuple[TensorForm, ...]

    def check(self, arrays: Sequence[Any]) -> None:
        """Refuse inputs that the net does not take.

        Raises:
            ValueError: another number of arrays, or an array of another type or shape; names the first.
        """
        if len(arrays) != len(self.inputs):
            wanted = "; ".join(map(str, self.inputs))
            raise ValueError(f"expected {len(self.inputs)} input arrays ({wanted}). Received: {len(arrays)}")
        for form, given in zip(self.inputs, arrays, strict=True):
            array = np.asarray(given)
            if not form.takes(array):
                raise ValueError(f"expected the input {form}. Received: an array {array.shape} of {array.dtype}")
        batched = [array for array, form in zip(arrays, self.inputs, strict=True) if form.shape[:1] == (None,)]
        batches = {np.shape(array)[0] for array in batched}
        if len(batches) > 1:
            raise ValueError(f"expected inputs of one batch size. Received: batches of {sorted(batches)}")

    def examples(
        self, batch: int, given: Sequence[NDArray[Any]] | None = None, seed: int = 0
    ) -> tuple[NDArray[Any], ...]:
        """Inputs of one batch size: those given, cut or repeated in front, or random ones."""
        if given is None:
            return self.random_inputs(batch, seed)
        batched = [form.shape[:1] == (None,) for form in self.inputs]
        rows = [np.arange(batch) % len(array) if cut else ... for array, cut in zip(given, batched, strict=True)]
        return tuple(array[row] for array, row in zip(given, rows, strict=True))

    def random_inputs(self, batch: int, seed: int = 0) -> tuple[NDArray[Any], ...]:
        """Inputs to measure with: floats from a normal distribution, integers 0 and 1, which every embedding knows.

        Sizes other than the batch that the signature leaves open are 16.
        """
        generator = np.random.default_rng(seed)
        return tuple(_random(form, batch, generator) for form in self.inputs)


def flat_arrays(nest: Any, names: Sequence[str]) -> list[tuple[str, Any]]:
    """The leaves of a nest of lists, tuples and dictionaries with their names, in the order of Keras: keys sorted.

    Args:
        nest: of anything but lists, tuples and dictionaries.
        names: one for each leaf, for those that are in no dictionary.
    """
    found = list(_leaves(nest, ""))
    return [(key or name, leaf) for (key, leaf), name in zip(found, names, strict=True)]


def _leaves(nest: Any, key: str) -> Any:
    if isinstance(nest, Mapping):
        for name in sorted(nest):
            yield from _leaves(nest[name], f"{key}.{name}" if key else str(name))
    elif isinstance(nest, list | tuple):
        for item in nest:
            yield from _leaves(item, key)
    else:
        yield key, nest


def _random(form: TensorForm, batch: int, generator: np.random.Generator) -> NDArray[Any]:
    shape = [batch if index == 0 and size is None else size or 16 for index, size in enumerate(form.shape)]
    if form.dtype == "string":
        return np.full(shape, b"text", dtype=object)
    dtype = np.dtype(form.dtype)
    if dtype.kind in "iub":
        return generator.integers(0, 2, shape).astype(dtype)
    return generator.standard_normal(shape).astype(dtype)
