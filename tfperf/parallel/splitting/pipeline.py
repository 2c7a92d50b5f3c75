"""A net that is split by layers over devices, through which micro-batches pass as through a pipeline."""

import itertools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from tfperf.errors import TfperfError
from tfperf.parallel.splitting.graph import NetGraph
from tfperf.parallel.splitting.timeline import StageTask, Timeline

__all__ = ["Pipeline", "Stage"]


class Pipeline:
    """A net whose layers lie on several devices, each of which works on another micro-batch at the same time.

    ::

        pipeline = Pipeline(net, ["GPU:0", "GPU:1"])
        outputs = pipeline(inputs, micro_batches=8)
        pipeline.compile("adam", "mse")
        loss = pipeline.train_on_batch(inputs, labels, micro_batches=8)
        pipeline.write_back()  # the weights, into `net`

    The schedule is GPipe's (Huang et al. 2019, https://arxiv.org/abs/1811.06965): all micro-batches forward, then all
    backward, then one update, with the gradients of the whole batch. Batch normalization has the statistics of a
    micro-batch, and dropout draws other numbers than in the whole net.
    """

    def __init__(self, net: keras.Model, devices: Sequence[str]) -> None:
        """Copy the net's layers to the devices, in stages of about equal floating-point operations.

        Args:
            net: Sequential or functional. What skips a stage is handed on by it.
            devices: one for each stage: ["GPU:0", "GPU:1"]; logical devices of a CPU serve for trying it out, and
                then one thread for an operation (tf.config.threading) keeps one from taking the cores of the others.

        Raises:
            TfperfError: the net's layers are not known in advance, or it cannot be cut into so many stages.
        """
        graph = NetGraph(net)
        self._inputs, self._output_structure = graph.inputs, graph.output_structure
        bounds = itertools.pairwise([0, *graph.balanced_cuts(len(devices)), len(graph.nodes)])
        self.stages = tuple(
            Stage(graph.nodes[start:end], graph.crossing(start), graph.crossing(end), device, is_first=start == 0)
            for (start, end), device in zip(bounds, devices, strict=True)
        )
        self._loss: Callable[..., tf.Tensor] | None = None
        self._tasks: list[StageTask] = []

    @property
    def timeline(self) -> Timeline:
        """When each stage worked in the last call."""
        return Timeline(len(self.stages), tuple(self._tasks))

    def __call__(self, inputs: Any, micro_batches: int = 1) -> Any:
        """Compute the outputs of the net, in inference mode.

        Args:
            inputs: what the net takes, (batch, ...) each.
            micro_batches: parts of the batch that follow each other through the stages.

        Returns:
            What the net returns.

        Raises:
            TfperfError: the micro-batches do not divide the batch.
        """
        self._tasks = []
        ends = []
        for index, part in enumerate(self._parts(inputs, micro_batches)):
            passed = _known(part)
            for stage in self.stages:
                passed = self._submit(stage, index, "forward", stage.infer, passed)
            ends.append(passed)
        outputs = [tf.concat(parts, axis=0) for parts in zip(*_results(ends), strict=True)]
        return keras.tree.pack_sequence_as(self._output_structure, outputs)

    def compile(self, optimizer: str | keras.Optimizer, loss: Any) -> None:
        """Say how to train; each stage gets an optimizer of its own with these settings.

        Args:
            optimizer: one that updates every weight by itself.
            loss: a Keras loss, its name, or a function of labels and outputs; its mean over the batch is minimized.

        Raises:
            TfperfError: the optimizer needs the gradients of all stages at once, or the loss is no mean.
        """
        optimizer = keras.optimizers.get(optimizer)
        if optimizer.global_clipnorm or isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            raise TfperfError(
                "expected an optimizer that updates each weight by itself. Received: one that clips by the norm of all "
                "gradients or scales the loss; use clipnorm, or bfloat16"
            )
        loss = keras.losses.get(loss)
        if getattr(loss, "reduction", "mean") == "sum":
            raise TfperfError(f"expected a loss that is a mean over the batch. Received: {loss.name}, which is a sum")
        self._loss = tf.function(lambda labels, outputs: tf.reduce_mean(loss(labels, outputs)), autograph=False)
        for stage in self.stages:
            stage.begin(optimizer)

    def train_on_batch(self, inputs: Any, labels: Any, micro_batches: int = 1) -> float:
        """Take one training step on a batch; the gradients of the micro-batches are summed.

        Args:
            inputs, labels: (batch, ...) each.
            micro_batches: parts of the batch that follow each other through the stages.

        Returns:
            The loss before the step, with what regularizers add.

        Raises:
            TfperfError: the micro-batches do not divide the batch, or `compile` was not called.
        """
        if self._loss is None:
            raise TfperfError("expected compile(optimizer, loss) before training. Received: no loss")
        parts, share = self._parts(inputs, micro_batches), 1 / micro_batches
        arrays = [tf.convert_to_tensor(array) for array in keras.tree.flatten(labels)]
        losses_of = [partial(self._loss_of, labels, part) for part in _split(arrays, micro_batches)]
        self._tasks = []
        losses, ends = [], []
        for index, part in enumerate(parts):
            passed = _known(part)
            for stage in self.stages:
                loss = losses_of[index] if stage is self.stages[-1] else None
                passed = self._submit(stage, index, "forward", partial(stage.forward, index, loss=loss), passed)
            losses.append(passed)
        for index in reversed(range(micro_batches)):
            passed = _known([share])
            for stage in reversed(self.stages):
                passed = self._submit(stage, index, "backward", partial(stage.backward, index, share=share), passed)
            ends.append(passed)
        try:
            losses_of_parts = _results([*losses, *ends])[:micro_batches]
            own_losses: list[float] = _results([stage.worker.submit(stage.update) for stage in self.stages])
        finally:
            for stage in self.stages:
                stage.forget()
        return sum(float(loss) for [loss] in losses_of_parts) * share + sum(own_losses)

    def write_back(self) -> None:
        """Copy the weights of all stages into the net that was split."""
        for stage in self.stages:
            stage.write_back()

    def _parts(self, inputs: Any, micro_batches: int) -> list[list[tf.Tensor]]:
        """The inputs of each micro-batch, as a flat list."""
        tensors = [
            keras.ops.convert_to_tensor(array, dtype=tensor.dtype)
            for array, tensor in zip(keras.tree.flatten(inputs), self._inputs, strict=True)
        ]
        return _split(tensors, micro_batches)

    def _loss_of(self, structure: Any, labels: list[tf.Tensor], outputs: list[tf.Tensor]) -> tf.Tensor:
        """The loss of one micro-batch; labels and outputs are flat."""
        assert self._loss is not None
        return self._loss(
            keras.tree.pack_sequence_as(structure, labels),
            keras.tree.pack_sequence_as(self._output_structure, outputs),
        )

    def _submit(
        self,
        stage: "Stage",
        micro_batch: int,
        phase: str,
        work: Callable[[Any], list[tf.Tensor]],
        passed: "Future[Any]",
    ) -> "Future[list[tf.Tensor]]":
        """Queue one task of a stage behind its others; it waits for what the stage beside it passes to it."""

        def task() -> list[tf.Tensor]:
            received = passed.result()
            start = time.perf_counter()
            sent = work(received)
            end = time.perf_counter()
            self._tasks.append(StageTask(self.stages.index(stage), micro_batch, phase, start, end))
            return sent

        return stage.worker.submit(task)


def _split(tensors: Sequence[tf.Tensor], micro_batches: int) -> list[list[tf.Tensor]]:
    """The tensors of each micro-batch."""
    batch = tensors[0].shape[0]
    if micro_batches < 1 or batch % micro_batches:
        raise TfperfError(
            f"expected a number of micro-batches that divides the batch of {batch}. Received: {micro_batches}"
        )
    return [list(part) for part in zip(*(tf.split(tensor, micro_batches) for tensor in tensors), strict=True)]


def _known(value: list[Any]) -> "Future[Any]":
    """What needs no waiting for."""
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def _results(futures: Sequence["Future[Any]"]) -> list[Any]:
    """Wait for all tasks, also after a failure: a queue that is not empty would delay the next call."""
    wait(futures)
    return [future.result() for future in futures]


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
