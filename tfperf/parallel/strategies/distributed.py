"""Replicas under a `tf.distribute.Strategy`: of one device, of several, or of several processes."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tfperf.parallel.strategies.loop import digest, loss_and_gradients, share
from tfperf.parallel.strategies.task import Task

__all__ = ["Distributed"]


class Distributed:
    """Replicas of one net, each with variables of its own that TensorFlow keeps equal.

    Keras's optimizers sum the gradients of all replicas by themselves, and its losses divide by their number.
    """

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        """Take TensorFlow's strategy; the default one has one replica."""
        self._strategy = strategy
        self.replicas: int = strategy.num_replicas_in_sync
        self._step = tf.function(self._step_of_all, autograph=False)
        self._net: keras.Model

    def create(self, task: Task) -> None:
        """Build the net and its optimizer with a copy on each replica."""
        with self._strategy.scope():
            self._net = task.built()
            self._net.optimizer.build(self._net.trainable_variables)

    def step(self, batch: Any) -> float:
        """Train on one global batch; its loss."""
        shares = self._strategy.experimental_distribute_values_from_function(
            lambda replica: share(batch, replica.replica_id_in_sync_group, self.replicas)
        )
        return float(self._step(shares))

    def weights(self) -> list[NDArray[Any]]:
        """The weights of the first replica in this process."""
        return self._copies(self._net.weights)[0]

    def digests(self) -> list[str]:
        """The digest of the trainable weights of each replica in this process."""
        return [digest(weights) for weights in self._copies(self._net.trainable_weights)]

    def _step_of_all(self, shares: Any) -> tf.Tensor:
        losses = self._strategy.run(self._step_of_one, args=(shares,))
        return self._strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    def _step_of_one(self, batch: Any) -> tf.Tensor:
        loss, gradients = loss_and_gradients(self._net, batch, replicas=1)
        self._net.optimizer.apply(gradients, self._net.trainable_variables)
        return loss

    def _copies(self, variables: list[keras.Variable]) -> list[list[NDArray[Any]]]:
        """The values of the variables, by replica."""
        by_variable = [self._strategy.experimental_local_results(variable.value) for variable in variables]
        return [[np.asarray(copy) for copy in copies] for copies in zip(*by_variable, strict=True)]
