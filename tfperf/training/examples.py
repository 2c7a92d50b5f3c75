"""What a model is trained on, as users name it: a data set, their own function, or a file of arrays."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfperf.data import NAMES, load
from tfperf.errors import ExportError, in_one_line
from tfperf.exports.opening import call_named, find_named

__all__ = ["DATA_FORMS", "first_batch", "is_arrays", "load_examples"]

DATA_FORMS = f"a data set ({', '.join(NAMES)}), file.py:callable, module:callable, or an .npz file with x and y"
"""What data may be on the command line."""


def is_arrays(data: Any) -> bool:
    """Whether data is a tuple of arrays, rather than a `tf.data.Dataset`."""
    return isinstance(data, tuple)


def load_examples(source: str) -> Any:
    """The data that a name, a function or a file means.

    Args:
        source: one of `DATA_FORMS`. Images of a data set are scaled to 0 to 1, float32, (examples, height, width,
            channels).

    Returns:
        A tuple of arrays (x, y) or (x, y, sample weights), or a `tf.data.Dataset` of batches.

    Raises:
        ExportError: there are no such data; the message is one line.
    """
    if source in NAMES:
        dataset = load(source)
        return dataset.train_images.astype("float32") / 255, dataset.train_labels
    if source.endswith(".npz"):
        return _of_one_length(_from_file(Path(source)), source)
    made = call_named(find_named(source, DATA_FORMS))
    if isinstance(made, tf.data.Dataset):
        if not isinstance(made.element_spec, tuple) or len(made.element_spec) < 2:
            raise ExportError(f"expected {source} to give batches of (x, y). Received: {made.element_spec}")
        return made
    if not isinstance(made, tuple | list) or len(made) not in (2, 3):
        raise ExportError(
            f"expected {source} to return (x, y), (x, y, sample weights) or a tf.data.Dataset of batches. "
            f"Received: {type(made).__name__}"
        )
    return _of_one_length(tuple(keras.tree.map_structure(np.asarray, part) for part in made), source)


def first_batch(data: tf.data.Dataset, source: str) -> tuple[Any, ...]:
    """The first batch of a data set that `source` has given.

    Raises:
        ExportError: it has none, or its code fails; the message is one line.
    """
    try:
        for batch in data.take(1):
            return tuple(batch)
    except Exception as error:  # whatever the user's own code raises
        raise ExportError(f"{source} fails when it is read: {in_one_line(error)}") from error
    raise ExportError(f"expected {source} to give batches of (x, y). Received: none")


def _of_one_length(arrays: tuple[Any, ...], source: str) -> tuple[Any, ...]:
    counts = {len(array) if array.ndim else 0 for array in keras.tree.flatten(arrays)}
    if len(counts) != 1 or 0 in counts:
        words = ", ".join(map(str, sorted(counts)))
        raise ExportError(f"expected {source} to give arrays of as many examples each. Received: {words}")
    return arrays


def _from_file(path: Path) -> tuple[Any, ...]:
    try:
        with np.load(path, allow_pickle=False) as stored:
            names = [name for name in ("x", "y", "sample_weight") if name in stored.files]
            if names[:2] != ["x", "y"]:
                raise ExportError(f"expected arrays x and y in {path}. Received: {', '.join(stored.files) or 'none'}")
            return tuple(stored[name] for name in names)
    except (OSError, ValueError) as error:
        raise ExportError(f"expected an .npz file with x and y. Received: {path}: {error}") from error
