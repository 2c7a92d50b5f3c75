"""The one training loop of all strategies, and the replicas that TensorFlow joins: on devices, or at a server."""

import contextlib
import hashlib
import time
from collections.abc import Iterator, Sequence
from functools import reduce
from operator import add
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tfperf.errors import TfperfError
from tfperf.parallel.strategies.task import Task, Trained

__all__ = ["ParameterServer", "Replicas", "Strategy", "digest", "find_devices", "loss_and_gradients", "run", "share"]

SERVER = "/job:ps/task:0"


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


def find_devices(number: int) -> list[str]:
    """The names of so many GPUs, or where there is none, of logical CPU devices, which share this machine's cores.

    Memory of the GPUs is taken as it is needed.

    Raises:
        TfperfError: there are fewer GPUs, or TensorFlow has started with fewer CPU devices.
    """
    gpus, (cpu, *_) = tf.config.list_physical_devices("GPU"), tf.config.list_physical_devices("CPU")
    with contextlib.suppress(RuntimeError):  # TensorFlow has started: the devices are as they are
        for gpu in gpus:
            tf.config.experimental.set_memory_growth(gpu, True)
        if not gpus and len(tf.config.get_logical_device_configuration(cpu) or ()) < number:
            parts = [tf.config.LogicalDeviceConfiguration() for _ in range(number)]
            tf.config.set_logical_device_configuration(cpu, parts)
    names = [device.name for device in tf.config.list_logical_devices("GPU" if gpus else "CPU")]
    if len(names) < number and gpus:
        raise TfperfError(f"expected at most as many devices as GPUs, {len(names)}. Received: {number}")
    if len(names) < number:
        raise TfperfError(
            f"expected {number} logical CPU devices, TensorFlow has started with {len(names)}; ask for them before it "
            "computes anything in this process, or call tf.config.set_logical_device_configuration first"
        )
    return names[:number]


class Replicas:
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
