"""Input pipelines of data sets that are in memory."""

from typing import Any

import numpy as np

from tfperf.data.dataset import Dataset

__all__ = ["training_batches"]


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
