"""What a net takes and gives: named tensors, in one order, whatever nest of them its Python call takes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
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

    @property
    def batched(self) -> bool:
        """Whether it has a batch of any size in front."""
        return self.shape[:1] == (None,)

    def with_batch(self, batch: int | None) -> tuple[int | None, ...]:
        """Its shape, with a batch in front that is open replaced by another."""
        return (batch, *self.shape[1:]) if self.batched else self.shape

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

    @property
    def told_apart(self) -> "Signature":
        """This, with other names for outputs named as an input, as a denoiser's may be: some formats have none such."""
        given = {form.name for form in self.inputs}
        taken, outputs = given | {form.name for form in self.outputs}, []
        for form in self.outputs:
            name = form.name
            while form.name in given and name in taken:
                name += "_out"
            taken.add(name)
            outputs.append(form.model_copy(update={"name": name}))
        return self.model_copy(update={"outputs": tuple(outputs)})

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
        batches = {np.shape(array)[0] for array, form in zip(arrays, self.inputs, strict=True) if form.batched}
        if len(batches) > 1:
            raise ValueError(f"expected inputs of one batch size. Received: batches of {sorted(batches)}")

    def examples(
        self, batch: int, given: Sequence[NDArray[Any]] | None = None, seed: int = 0
    ) -> tuple[NDArray[Any], ...]:
        """Inputs of one batch size: those given, cut or repeated in front, or random ones."""
        return self.random_inputs(batch, seed) if given is None else self.rows(given, range(batch))

    def rows(self, arrays: Sequence[NDArray[Any]], wanted: range) -> tuple[NDArray[Any], ...]:
        """These rows of inputs, beyond the last one the first ones again; inputs without a batch are as they were."""
        return tuple(
            np.ascontiguousarray(array[np.arange(wanted.start, wanted.stop) % len(array)]) if form.batched else array
            for form, array in zip(self.inputs, arrays, strict=True)
        )

    def batches(self, arrays: Sequence[NDArray[Any]], size: int) -> Iterator[tuple[NDArray[Any], ...]]:
        """All rows of inputs in batches of one size; the last one is filled up with the first rows."""
        for start in range(0, self._number_of_rows(arrays), size):
            yield self.rows(arrays, range(start, start + size))

    def in_batches(
        self, call: Callable[..., Sequence[NDArray[Any]]], arrays: Sequence[NDArray[Any]], size: int
    ) -> tuple[NDArray[Any], ...]:
        """The answers to all rows, a batch at a time: outputs with a batch in front joined, others stacked.

        Args:
            call: from one array for each input, (size, ...), to one for each output.
            arrays: one for each input, (rows, ...). Answers to rows that fill up the last batch are dropped.
        """
        answers = [call(*batch) for batch in self.batches(arrays, size)]
        return tuple(
            np.concatenate(parts)[: self._number_of_rows(arrays)] if form.batched else np.stack(parts)
            for form, parts in zip(self.outputs, zip(*answers, strict=True), strict=True)
        )

    def _number_of_rows(self, arrays: Sequence[NDArray[Any]]) -> int:
        """How many examples the inputs with a batch in front have; 1 where none has a batch."""
        return max((len(array) for form, array in zip(self.inputs, arrays, strict=True) if form.batched), default=1)

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
