"""The coordinator of strategy `parameter_server`: the process that lets workers compute, and the server update."""

from functools import reduce
from operator import add
from typing import Any

import keras
import tensorflow as tf
from numpy.typing import NDArray

from tfperf.parallel.strategies.loop import digest, loss_and_gradients, share
from tfperf.parallel.strategies.task import Task

__all__ = ["ParameterServer"]

SERVER = "/job:ps/task:0"


class ParameterServer:
    """Synchronous training: each step waits for all gradients, and updates the one copy of the variables once.

    Keras 3 cannot make its variables on a server. Its net is built here, and called with the server's variables in
    place of its own.
    """

    def __init__(self, resolver: Any, workers: int) -> None:
        self.replicas = workers
        self._strategy = tf.distribute.ParameterServerStrategy(resolver)
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(self._strategy)
        self._gradients = tf.function(self._gradients_of_one, autograph=False)
        self._update = tf.function(self._update_all, autograph=False)
        self._net: keras.Model
        self._on_server: list[tf.Variable]

    def create(self, task: Task) -> None:
        """Build the net here, and copy its variables and its optimizer's to the server."""
        self._net = task.built()
        with self._strategy.scope():
            self._on_server = [tf.Variable(v.value) for v in self._net.variables]
        with tf.device(SERVER):
            self._net.optimizer.build(self._there(self._net.trainable_variables))

    def step(self, batch: Any) -> float:
        """Let each worker compute the gradients of its share, then sum and apply them; the loss of all."""
        shares = [share(batch, replica, self.replicas) for replica in range(self.replicas)]
        results = [self._coordinator.schedule(self._gradients, args=(one,)) for one in shares]
        self._coordinator.join()
        losses, gradients, states = zip(*(result.fetch() for result in results), strict=True)
        self._update([reduce(add, parts) for parts in zip(*gradients, strict=True)], states[0])
        return float(sum(losses))

    def weights(self) -> list[NDArray[Any]]:
        """The weights on the server."""
        return [variable.numpy() for variable in self._there(self._net.weights)]

    def digests(self) -> list[str]:
        """The digest of the only copy of the trainable weights."""
        return [digest([variable.numpy() for variable in self._there(self._net.trainable_weights)])]

    def _gradients_of_one(self, batch: Any) -> Any:
        """One worker's part: loss, gradients, and new values of the variables that are not trained."""
        values = [tf.convert_to_tensor(variable) for variable in self._on_server]
        with keras.StatelessScope(list(zip(self._net.variables, values, strict=True))) as scope:
            loss, gradients = loss_and_gradients(self._net, batch, self.replicas)
        states = [scope.get_current_value(variable) for variable in self._net.non_trainable_variables]
        return loss, gradients, states

    def _update_all(self, gradients: list[tf.Tensor], states: list[tf.Tensor]) -> None:
        with tf.device(SERVER):
            self._net.optimizer.apply(gradients, self._there(self._net.trainable_variables))
            for variable, value in zip(self._there(self._net.non_trainable_variables), states, strict=True):
                variable.assign(value)

    def _there(self, variables: list[keras.Variable]) -> list[tf.Variable]:
        """The server's copies of these."""
        by_id = dict(zip(map(id, self._net.variables), self._on_server, strict=True))
        return [by_id[id(variable)] for variable in variables]
