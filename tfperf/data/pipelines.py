"""Input pipelines: batches of what is in memory, files of records to read, and examples of pipelines to compare."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tfperf.data.dataset import Dataset
from tfperf.errors import DataError

__all__ = ["sorted_examples", "training_batches", "write_records"]


def training_batches(data: Dataset, batch: int, *, seed: int = 0, reshuffle: bool = True) -> Any:
    """Shuffle the train images and make batches of them; equal calls give equal batches.

    Args:
        data: a data set.
        batch: images in a batch, of all replicas together; what is left at the end of an epoch is dropped, as replicas
            need equal parts.
        seed: of the orders.
        reshuffle: whether each pass has another order. Nets that are to see equal batches need False, and another seed
            in each epoch: under a strategy Keras's `fit` begins one pass more than without, to build the net.

    Returns:
        A `tf.data.Dataset` of images (batch, height, width, channels), float32 of 0 to 1, and labels (batch,), int64.
        tf.data's tuner is off: there is nothing to tune, and an epoch may end only when the tuner wakes.

    Raises:
        ValueError: an epoch has no batch.
    """
    import tensorflow as tf

    if not 1 <= batch <= len(data.train_images):
        raise ValueError(f"expected batch from 1 to {len(data.train_images)}, the images. Received: batch={batch}")
    options = tf.data.Options()
    options.autotune.enabled = False
    pairs = tf.data.Dataset.from_tensor_slices((data.train_images, data.train_labels))
    pairs = pairs.shuffle(len(data.train_images), seed=seed, reshuffle_each_iteration=reshuffle)
    scaled = pairs.batch(batch, drop_remainder=True).map(
        lambda images, labels: (tf.cast(images, tf.float32) / np.float32(255), labels)
    )
    return scaled.prefetch(2).with_options(options)


def write_records(data: Dataset, folder: Path | str, *, files: int = 8) -> list[str]:
    """Write the train images as PNG, with their labels, into TFRecord files that are about equally large.

    Image k goes into file k modulo `files`. Each record is a `tf.train.Example` with the features "image" (the bytes
    of a PNG) and "label" (one int64).

    Args:
        data: whose train images have 1, 3 or 4 channels.
        folder: an existing folder; files of the same names there are replaced.
        files: how many to write.

    Returns:
        Their paths, in order of their first images.

    Raises:
        ValueError: there are fewer images than files, or fewer than one file.
        DataError: TensorFlow cannot encode the images, or not write into the folder.
    """
    import tensorflow as tf

    if not 1 <= files <= len(data.train_images):
        raise ValueError(f"expected files from 1 to {len(data.train_images)}, the images. Received: files={files}")
    paths = [str(Path(folder, f"train-{number:05}-of-{files:05}.tfrecord")) for number in range(files)]
    try:
        for number, path in enumerate(paths):
            with tf.io.TFRecordWriter(path) as writer:
                examples = zip(data.train_images[number::files], data.train_labels[number::files], strict=True)
                for image, label in examples:
                    features = {
                        "image": tf.train.Feature(
                            bytes_list=tf.train.BytesList(value=[tf.io.encode_png(image).numpy()])
                        ),
                        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
                    }
                    example = tf.train.Example(features=tf.train.Features(feature=features))
                    writer.write(example.SerializeToString())
    except tf.errors.OpError as error:
        raise DataError(f"cannot write the images of {data.name} into {folder}: {error.message}") from error
    return paths


def sorted_examples(batches: Iterable[tuple[Any, Any]]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Read all batches, and put the examples into an order that does not depend on the order they came in.

    Two pipelines that give the same examples, in whatever order and batches, give equal arrays.

    Args:
        batches: a `tf.data.Dataset`, or any iterable, of inputs (batch, ...) and labels (batch,).

    Returns:
        Inputs (n, ...), sorted by their bytes, and their labels (n,).

    Raises:
        ValueError: there is no batch.
    """
    parts = [(np.asarray(inputs), np.asarray(labels)) for inputs, labels in batches]
    if not parts:
        raise ValueError("expected at least one batch. Received: none")
    inputs, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    order = sorted(range(len(inputs)), key=lambda number: (inputs[number].tobytes(), labels[number].tobytes()))
    return inputs[order], labels[order]
