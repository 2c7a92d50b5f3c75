"""One stage of a pipeline: consecutive layers of a net, on a device of their own."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import keras
import tensorflow as tf

__all__ = ["Stage"]


class Stage:
    """Consecutive operations of a net with copies of their layers on one device, and the thread that drives it."""

    def __init__(
        self, nodes: Sequence[Any], received: Sequence[Any], sent: Sequence[Any], device: str, *, is_first: bool
    ) -> None:
        """Copy layers and weights to the device.

        Args:
            nodes: of the net's graph, in an order in which they can be computed.
            received, sent: the symbolic tensors that cross the cuts before and after the stage. One that is in both is
                handed on.
            device: "GPU:1", "CPU:0", ...
            is_first: whether it receives the net's inputs, which need no gradients.
        """
        self.device, self._is_first = device, is_first
        self.worker = ThreadPoolExecutor(1, f"stage on {device}")  # one: micro-batches pass in order
        self._layers: dict[int, tuple[Any, Any]] = {}  # of the net and its copy
        with tf.device(device):
            values = {id(tensor): keras.Input(tensor.shape[1:], dtype=tensor.dtype) for tensor in received}
            inputs = list(values.values())
            for node in nodes:
                arguments, options = node.arguments.fill_in(values)
                outputs = self._copy(node.operation)(*arguments, **options)
                values |= zip(map(id, node.outputs), keras.tree.flatten(outputs), strict=True)
            self.net = keras.Model(inputs, [values[id(tensor)] for tensor in sent])
            for layer, copy in self._layers.values():
                copy.set_weights(layer.get_weights())
        self._run = tf.function(self._call, autograph=False)
        self._kept: dict[int, Any] = {}  # micro-batch -> tape, what it differentiates by, what it differentiates
        self._sums: list[tf.Tensor] = []  # of the gradients
        self._own_losses: list[tf.Tensor] = []  # of the layers

    def _copy(self, operation: Any) -> Any:
        """A layer of the same configuration; operations without weights need no copy."""
        if not isinstance(operation, keras.Layer):
            return operation
        if id(operation) not in self._layers:
            self._layers[id(operation)] = operation, type(operation).from_config(operation.get_config())
        return self._layers[id(operation)][1]

    def write_back(self) -> None:
        """Copy the weights into the layers of the net that was split."""
        for layer, copy in self._layers.values():
            layer.set_weights(copy.get_weights())

    def _call(self, received: list[tf.Tensor], training: bool) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Give what is sent on, and the sum of the layers' own losses, as regularizers add them."""
        sent = keras.tree.flatten(self.net(received, training=training))
        return sent, tf.add_n(self.net.losses) if self.net.losses else tf.constant(0.0)

    def infer(self, received: list[tf.Tensor]) -> list[tf.Tensor]:
        """Compute one micro-batch."""
        with tf.device(self.device):
            sent, _ = self._run([tf.identity(tensor) for tensor in received], training=False)
        _wait_for(sent)
        return list(sent)

    def begin(self, optimizer: keras.Optimizer) -> None:
        """Make this stage's own optimizer, whose slots lie beside the weights."""
        with tf.device(self.device):
            self._optimizer = type(optimizer).from_config(optimizer.get_config())
            self._optimizer.build(self.net.trainable_variables)
        variables = self.net.trainable_variables
        self._apply = tf.function(lambda gradients: self._optimizer.apply(gradients, variables), autograph=False)

    def forward(
        self, micro_batch: int, received: list[tf.Tensor], loss: Callable[[list[tf.Tensor]], tf.Tensor] | None
    ) -> list[tf.Tensor]:
        """Compute one micro-batch and keep what its gradient needs.

        Args:
            micro_batch: its number.
            received: what the stage before has sent.
            loss: of the last stage: the loss of its outputs, which it then sends.
        """
        with tf.device(self.device), tf.GradientTape() as tape:
            received = [tf.identity(tensor) for tensor in received]
            watched = [] if self._is_first else _differentiable(received)
            tape.watch(watched)
            sent, own_losses = self._run(received, training=True)
            if loss is not None:
                sent = [loss(sent)]
        self._own_losses.append(own_losses)
        self._kept[micro_batch] = tape, watched, [*_differentiable(sent), own_losses]
        _wait_for(sent)
        return list(sent)

    def backward(self, micro_batch: int, gradients: list[tf.Tensor], share: float) -> list[tf.Tensor]:
        """Add one micro-batch's gradients to the sums.

        Args:
            micro_batch: its number.
            gradients: of the batch's loss with respect to what this stage has sent.
            share: of the batch that is this micro-batch.

        Returns:
            The gradients with respect to what this stage has received.
        """
        tape, received, targets = self._kept.pop(micro_batch)
        variables = [variable.value for variable in self.net.trainable_variables]
        with tf.device(self.device):
            of_targets = [tf.cast(value, t.dtype) for value, t in zip([*gradients, share], targets, strict=True)]
            of_variables, of_received = tape.gradient(
                targets, [variables, received], of_targets, unconnected_gradients=tf.UnconnectedGradients.ZERO
            )
            of_variables = [tf.convert_to_tensor(gradient) for gradient in of_variables]  # an embedding's is sparse
            self._sums = [a + b for a, b in zip(self._sums, of_variables, strict=True)] if self._sums else of_variables
        _wait_for(of_received or self._sums)
        return list(of_received)

    def update(self) -> float:
        """Apply the sums of the gradients to the weights, and give the mean of the layers' own losses."""
        with tf.device(self.device):
            if self._sums:  # a stage may have no weights
                self._apply(self._sums)
        own_losses = [float(loss) for loss in self._own_losses]
        return sum(own_losses) / len(own_losses)

    def forget(self) -> None:
        """Drop what belongs to one training step."""
        self._kept, self._sums, self._own_losses = {}, [], []


def _differentiable(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    return [tensor for tensor in tensors if tensor.dtype.is_floating]


def _wait_for(tensors: Sequence[tf.Tensor]) -> None:
    """Wait for a device that computes asynchronously: a copied element comes after all that was started before it."""
    for tensor in tensors[:1]:
        if "CPU" not in tensor.device:
            tf.reshape(tensor, [-1])[:1].numpy()
