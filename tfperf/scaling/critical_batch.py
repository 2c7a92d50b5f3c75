"""How large a batch is worth it: the steps that it saves, predicted and measured, and the gradients of its parts."""

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from tfperf.errors import TfperfError
from tfperf.scaling.constants import CASES, Range
from tfperf.scaling.step import Prediction

if TYPE_CHECKING:
    import keras

__all__ = ["CRITICAL_BATCH", "fit_critical_batch", "part_gradients", "seconds_to_accuracy", "steps_to_accuracy"]

CRITICAL_BATCH = Range.between(500.0, 8000.0)
"""Examples from which on a larger batch hardly saves steps, of nets that classify images: from 900 for SVHN to 8,000
for ImageNet in McCandlish et al., lower for small nets. The noise of gradients is doubted as a proxy for it
(arXiv 2505.23971), and Shallue et al. (1811.03600) found no rule that holds from one data set to the next."""


def steps_to_accuracy(batch: float, least_steps: float, critical_batch: float) -> float:
    """Return the steps to an accuracy with a batch: `least_steps * (1 + critical_batch / batch)`.

    Args:
        batch: examples of a step, of all workers.
        least_steps: steps that no batch, however large, goes below.
        critical_batch: examples at which twice as many steps are needed.

    Source: McCandlish, Kaplan, Amodei et al., An empirical model of large-batch training, arXiv 1812.06162.
    """
    return least_steps * (1 + critical_batch / batch)


def seconds_to_accuracy(
    prediction: Prediction, least_steps: float = 1.0, critical_batch: Range = CRITICAL_BATCH
) -> Range:
    """Return the seconds to an accuracy: steps times seconds of a step, from the slowest case to the fastest.

    Args:
        prediction: of the step.
        least_steps: 1 gives seconds for each of the steps that no batch goes below, enough for comparing.
        critical_batch: its range; a small one lets large batches save fewer steps.
    """
    batch = prediction.workload.batch * prediction.workers
    seconds = Range(prediction.slow, prediction.likely.seconds, prediction.fast)
    times = [steps_to_accuracy(batch, least_steps, critical_batch.at(case)) * seconds.at(case) for case in CASES]
    return Range(max(times), times[CASES.index("likely")], min(times))


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
        by_weight = zip(net.trainable_variables, tape.gradient(loss, net.trainable_variables), strict=True)
        gradients.append(np.concatenate([np.ravel(_dense(gradient, weight)) for weight, gradient in by_weight]))
    return np.stack(gradients)


def _dense(gradient: Any, weight: Any) -> Any:
    """A gradient as a dense tensor: an embedding's is sparse, and a weight that the loss does not see has none."""
    import tensorflow as tf

    return np.zeros(weight.shape, np.float32) if gradient is None else tf.convert_to_tensor(gradient)


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
