"""What is to be trained: a compiled model, made anew for each seed, and its data."""

import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfperf.data import NAMES as DATA_NAMES
from tfperf.errors import ExportError, in_one_line
from tfperf.exports.keras_file import read_keras_file
from tfperf.exports.opening import call_named, find_named
from tfperf.nets import NAMES, get_net
from tfperf.training.examples import first_batch, is_arrays, load_examples

__all__ = ["MODEL_FORMS", "TrainingTask"]

MODEL_FORMS = f"a net ({', '.join(NAMES)}), file.py:callable, module:callable, or a .keras file"
"""What a model that is trained may be on the command line."""

RATE = 1e-3
"""The learning rate of Adam, for a model that is not compiled."""

UNKNOWN_STEPS = 2**31
"""The steps of an epoch that has no end, or none that was found."""

COUNT_SECONDS = 2.0
"""How long the batches of a data set are counted: many times what the steps of one execution take."""


def rows_of(batch: Any) -> int:
    """The examples in a batch."""
    return int(keras.tree.flatten(batch)[0].shape[0])


class TrainingTask:
    """A model to train, and its data."""

    def __init__(self, model: str, data: str) -> None:
        """Open nothing yet.

        Args:
            model: one of `MODEL_FORMS`. A callable takes nothing and returns a `keras.Model`.
            data: one of `tfperf.training.examples.DATA_FORMS`. A callable takes nothing and returns (x, y),
                (x, y, sample weights), or a `tf.data.Dataset` of batches.
        """
        self.model, self.data_source = model, data
        self.compiled = ""
        """The line that compiles the model; empty: it comes compiled."""
        self.reshaped: list[int] | None = None
        """The shape that each image of a data set is given for the model, once `data` was asked for; None: its own."""

    @cached_property
    def data(self) -> Any:
        """The data: a tuple of arrays, or a `tf.data.Dataset`.

        Raises:
            ExportError: there are no such data.
        """
        data = load_examples(self.data_source)
        if self.data_source in DATA_NAMES:
            images, labels = data
            shape = getattr(self._make(0), "input_shape", None)  # of a net that takes its pixels in a row
            of_one = shape[1:] if isinstance(shape, tuple) else images.shape[1:]
            if of_one != images.shape[1:] and None not in of_one and np.prod(of_one) == np.prod(images.shape[1:]):
                self.reshaped = list(of_one)
                images = images.reshape(len(images), *of_one)
            data = images, labels
        return data

    def build(self, seed: int) -> keras.Model:
        """The model with fresh weights, built and compiled.

        One that is not compiled gets Adam and, for whole-number labels, the cross-entropy of its logits or
        probabilities.

        Raises:
            ExportError: there is no such model, it fails, or it is not compiled and its loss cannot be guessed.
        """
        keras.utils.set_random_seed(seed)
        model = self._make(seed)
        tf.random.set_seed(None)  # else Keras's fit has the examples in the same order in every epoch
        if not isinstance(model, keras.Model):
            raise ExportError(f"expected {self.model} to return a keras.Model. Received: {type(model).__name__}")
        x, y = self._first_batch
        try:
            if not model.compiled:
                logits = _gives_logits(model, x, y)
                loss = keras.losses.SparseCategoricalCrossentropy(from_logits=logits)
                model.compile(keras.optimizers.Adam(RATE), loss)
                words = f"keras.losses.SparseCategoricalCrossentropy(from_logits={logits})"
                self.compiled = f"model.compile(keras.optimizers.Adam({RATE}), {words})"
            model._symbolic_build(data_batch=(x, y))
        except ExportError:
            raise
        except Exception as error:  # whatever Keras says of shapes and types
            shapes = ", ".join(str(tuple(one.shape)) for one in keras.tree.flatten((x, y)))
            why = in_one_line(error)
            raise ExportError(f"expected data that the model takes. Received: batches of {shapes}: {why}") from error
        return model

    def batch(self, batch_size: int) -> Any:
        """Inputs of a batch, as the model takes them."""
        if is_arrays(self.data):
            return keras.tree.map_structure(lambda array: array[:batch_size], self.data[0])
        return self._first_batch[0]

    def examples(self, batch_size: int, batches: int, seed: int) -> Any:
        """So many batches, the same for everybody with this seed: a tuple of arrays.

        Of a `tf.data.Dataset`: its first examples, whose order is its own, over and over. Batches are made full with
        those that follow, also where the last batch of an epoch is smaller.

        Raises:
            ExportError: the data set gives no examples when it is read again.
        """
        if is_arrays(self.data):
            count = len(keras.tree.flatten(self.data)[0])
            order = np.random.default_rng(seed).permutation(count)
            chosen = np.resize(order, batches * batch_size)
            return keras.tree.map_structure(lambda array: np.asarray(array)[chosen], self.data)
        rows, read, parts = batches * batch_size, 0, []
        for part in self.data.repeat():
            parts.append(part)
            read += rows_of(part)
            if read >= rows:
                break
        else:
            raise ExportError(f"expected {self.data_source} to give the same batches each time. Received: none again")
        return keras.tree.map_structure(lambda *some: np.concatenate([one.numpy() for one in some])[:rows], *parts)

    @cached_property
    def dataset_batch_size(self) -> int | None:
        """Examples in a batch of a `tf.data.Dataset`; None: the data are arrays."""
        return None if is_arrays(self.data) else rows_of(self._first_batch)

    def measured(self, steps: int) -> tuple[Any, list[int]]:
        """So many batches of a `tf.data.Dataset`, or all where it has fewer, and the examples of each.

        They are read once to be counted, unless the data set says how many there are and that all have the same size.

        Raises:
            ExportError: the data set gives no examples when it is read again.
        """
        length, shape = int(self.data.cardinality()), tf.nest.flatten(self.data.element_spec)[0].shape
        if length != tf.data.UNKNOWN_CARDINALITY and shape.rank and shape[0] is not None:
            steps = steps if length == tf.data.INFINITE_CARDINALITY else min(steps, length)
            return self.data.take(steps), [shape[0]] * steps
        sizes = [rows_of(batch) for batch in self.data.take(steps)]
        if not sizes:
            raise ExportError(f"expected {self.data_source} to give the same batches each time. Received: none again")
        taken = self.data.repeat().take(len(sizes))  # one that has fewer next time is read on from its start
        return taken.apply(tf.data.experimental.assert_cardinality(len(sizes))), sizes

    @cached_property
    def steps_per_epoch(self) -> Callable[[int], int]:
        """From a batch size to the steps of an epoch, at least one; 2**31 where they are not known.

        A `tf.data.Dataset` that does not say how many batches it has is read for `COUNT_SECONDS`.
        """
        if is_arrays(self.data):
            count = len(keras.tree.flatten(self.data)[0])
            return lambda batch_size: -(-count // batch_size)
        length = int(self.data.cardinality())
        if length == tf.data.UNKNOWN_CARDINALITY:
            length = _counted(self.data, COUNT_SECONDS)
        return lambda _: length if length > 0 else UNKNOWN_STEPS

    @cached_property
    def _first_batch(self) -> tuple[Any, Any]:
        if is_arrays(self.data):
            x, y, *_ = keras.tree.map_structure(lambda array: array[:2], self.data)
        else:
            x, y, *_ = first_batch(self.data, self.data_source)
        return x, y

    @cached_property
    def _make(self) -> Callable[[int], Any]:
        """From a seed to the model as it is made, which uses the seed that is set where it does not take one."""
        path = Path(self.model)
        if self.model in NAMES:
            return lambda seed: get_net(self.model, seed=seed)
        if path.suffix == ".keras":
            return lambda _: read_keras_file(path, compiled=True)
        named = find_named(self.model, MODEL_FORMS)
        return lambda _: call_named(named)


def _counted(data: tf.data.Dataset, seconds: float) -> int:
    """The batches of a data set that end within so many seconds after the first; -1: they do not."""
    began, count = None, 0
    for _ in data:
        began = time.perf_counter() if began is None else began
        count += 1
        if time.perf_counter() - began > seconds:
            return -1
    return count


def _gives_logits(model: keras.Model, x: Any, y: Any) -> bool:
    """Whether a classifier gives logits, rather than probabilities."""
    outputs, labels = model(x), keras.ops.convert_to_tensor(y)
    classified = tf.is_tensor(outputs) and len(outputs.shape) == len(labels.shape) + 1
    if not classified or not keras.backend.is_int_dtype(labels.dtype):
        raise ExportError(
            "expected a compiled model: its loss cannot be guessed from its outputs and labels; "
            "call compile(optimizer, loss) in the function that builds it"
        )
    last = model.layers[-1] if model.layers else None
    return not isinstance(last, keras.layers.Softmax) and (
        getattr(last, "activation", None) is not keras.activations.softmax
    )
