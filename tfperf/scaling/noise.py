"""How large a batch is worth it: the gradients of its parts, and the critical batch that measured steps speak of."""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from tfperf.errors import TfperfError

if TYPE_CHECKING:
    import keras

__all__ = ["fit_critical_batch", "part_gradients"]


def part_gradients(
    net: "keras.Model", images: npt.ArrayLike, labels: npt.ArrayLike, parts: int
) -> npt.NDArray[np.float32]:
    """Return the gradient of a net's loss by all its weights, for each of equal parts of a batch: (parts, weights).

    Args:
        net: compiled with a loss, which is taken as in training.
        images, labels: the batch, a multiple of `parts` examples.
        parts: 1 gives the gradient of the whole batch, n those of n workers before the allreduce.

    Raises:
        TfperfError: the batch cannot be split into that many equal parts.
    """
    import tensorflow as tf

    images, labels = np.asarray(images), np.asarray(labels)
    if parts < 1 or not len(images) or len(images) % parts:
        raise TfperfError(f"expected a batch of a multiple of {parts} examples. Received: {len(images)} examples")
    gradients = []
    for inputs, targets in zip(np.split(images, parts), np.split(labels, parts), strict=True):
        with tf.GradientTape() as tape:
            loss = net.compute_loss(inputs, targets, net(inputs, training=True))
        by_weight = tape.gradient(loss, net.trainable_variables)
        gradients.append(np.concatenate([np.ravel(gradient) for gradient in by_weight]))
    return np.stack(gradients)


def fit_critical_batch(batches: npt.ArrayLike, steps: npt.ArrayLike) -> tuple[float, float]:
    """Return the least steps and the critical batch (in examples) of `steps_to_accuracy` that fit measured steps best.

    Args:
        batches: examples of a step, two different ones at least.
        steps: to one accuracy with each of them; errors count relative to these.

    Returns:
        The least steps, which no batch goes below, and the critical batch, at which twice as many are needed; neither
        is negative. Where each batch saves as many steps as it is larger, they are 0 and infinity.

    Raises:
        TfperfError: there are fewer than two batches, or steps that are not positive and finite.
    """
    sizes, counts = np.asarray(batches, float), np.asarray(steps, float)
    if len(np.unique(sizes)) < 2 or not (np.isfinite(counts) & (counts > 0)).all():
        raise TfperfError(f"expected steps with two batches at least. Received: steps {counts} with batches {sizes}")
    (least, slope), _ = nnls(np.stack([1 / counts, 1 / (sizes * counts)], axis=1), np.ones(len(sizes)))
    return float(least), float(slope / least) if least else np.inf
