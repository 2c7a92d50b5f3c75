"""The one training loop of all strategies."""

import hashlib
import time
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import keras
import tensorflow as tf
from numpy.typing import NDArray

from tfperf.errors import TfperfError
from tfperf.parallel.strategies.task import Task, Trained

__all__ = ["Strategy", "digest", "loss_and_gradients", "run", "share"]


class Strategy(Protocol):
    """Where replicas run, and how they exchange: what the loop does not know."""

    replicas: int

    def create(self, task: Task) -> None:
        """Build the net wherever a replica is."""

    def step(self, batch: Any) -> float:
        """Train on one global batch; its loss."""

    def weights(self) -> list[NDArray[Any]]:
        """The weights of the first replica in this process."""

    def digests(self) -> list[str]:
        """The digest of each copy of the trainable weights that this process can see."""


def run(strategy: Strategy, task: Task) -> Trained:
    """Train under a strategy.

    Raises:
        TfperfError: `build` or `batches` fails, or a batch cannot be cut into equal parts.
    """
    strategy.create(task)
    losses, seconds = [], []
    for batch in _batches(task, strategy.replicas):
        start = time.perf_counter()
        losses.append(strategy.step(batch))
        seconds.append(time.perf_counter() - start)
    weights, digests = strategy.weights(), strategy.digests()
    return Trained(tuple(weights), tuple(losses), tuple(seconds), strategy.replicas, tuple(digests))


def share(batch: Any, replica: int, replicas: int) -> Any:
    """One replica's part of a global batch: tensors (batch, ...) to tensors (batch / replicas, ...)."""

    def part(tensor: tf.Tensor) -> tf.Tensor:
        size = tensor.shape[0] // replicas
        return tensor[replica * size : (replica + 1) * size]

    return tf.nest.map_structure(part, batch)


def loss_and_gradients(net: keras.Model, batch: Any, replicas: int) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """What a replica adds to the loss and the gradients of the global batch; the sums over all replicas are those.

    Args:
        net: whose variables are read, or what stands for them in a `keras.StatelessScope`.
        batch: this replica's share: (inputs, labels) or (inputs, labels, weights of the examples).
        replicas: among which Keras does not know that the batch is shared: 1 under a `tf.distribute.Strategy`, where
            it divides the loss by itself.

    Returns:
        The loss, a scalar, and a dense gradient for each trainable variable, zero where the loss does not need it.
    """
    inputs, labels, weights = keras.utils.unpack_x_y_sample_weight(batch)
    values = [variable.value for variable in net.trainable_variables]
    with tf.GradientTape() as tape:
        tape.watch(values)
        loss = net.compute_loss(inputs, labels, net(inputs, training=True), weights) / replicas
        scaled = net.optimizer.scale_loss(loss)  # against underflow in float16
    gradients = tape.gradient(scaled, values, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    return loss, [tf.convert_to_tensor(gradient) for gradient in gradients]


def digest(weights: Sequence[NDArray[Any]]) -> str:
    """A digest of arrays, 16 hexadecimal digits."""
    return hashlib.blake2b(b"".join(array.tobytes() for array in weights), digest_size=8).hexdigest()


def _batches(task: Task, replicas: int) -> Iterator[Any]:
    taken = 0
    for batch in task.dataset():
        size = tf.nest.flatten(batch)[0].shape[0]
        if size % replicas:
            raise TfperfError(
                f"expected batches that {replicas} replicas can share equally. Received: a batch of {size} examples; "
                "choose another size, and batch(..., drop_remainder=True)"
            )
        yield batch
        taken += 1
    if not taken:
        raise TfperfError("expected batches() to give a tf.data.Dataset of batches. Received: an empty one")
