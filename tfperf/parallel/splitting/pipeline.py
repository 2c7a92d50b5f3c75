"""A net that is split by layers over devices, through which micro-batches pass as through a pipeline."""

import itertools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from tfperf.errors import TfperfError
from tfperf.parallel.splitting.graph import NetGraph
from tfperf.parallel.splitting.stage import Stage
from tfperf.parallel.splitting.timeline import StageTask, Timeline

__all__ = ["Pipeline"]


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
        self, stage: Stage, micro_batch: int, phase: str, work: Callable[[Any], list[tf.Tensor]], passed: "Future[Any]"
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
