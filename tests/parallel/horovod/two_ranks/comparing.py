"""Nets, batches and loops for the checks, and the comparison of what all ranks have with what one process has."""

import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfperf.parallel.horovod as hvd

Batch = tuple[Any, Any]
History = list[list[np.ndarray]]
"""The trainable weights after each step."""

INPUTS, OUTPUTS, ROWS = 5, 3, 8


def dense_net(outputs: int = OUTPUTS, **options: Any) -> keras.Model:
    """Two layers with biases that do not start at zero: (rows, 5) -> (rows, outputs)."""
    bias = {"bias_initializer": keras.initializers.RandomNormal(stddev=0.5)}
    return keras.Sequential(
        [keras.Input((INPUTS,)), keras.layers.Dense(4, "tanh", **bias), keras.layers.Dense(outputs, **bias)], **options
    )


def batches(steps: int = 4, rows: int = ROWS, seed: int = 7) -> list[Batch]:
    """Whole batches, the same on every rank: x (rows, 5), y (rows, 3), float32."""
    rng = np.random.default_rng(seed)
    return [
        (rng.normal(size=(rows, INPUTS)).astype("float32"), rng.normal(size=(rows, OUTPUTS)).astype("float32"))
        for _ in range(steps)
    ]


def share(value: Any) -> Any:
    """This rank's rows of a whole batch, or of its parts."""
    if isinstance(value, dict):
        return {name: share(part) for name, part in value.items()}
    if isinstance(value, tuple):
        return tuple(map(share, value))
    rows = len(value) // hvd.size()
    return value[hvd.rank() * rows : (hvd.rank() + 1) * rows]


def weights_of(model: keras.Model) -> list[np.ndarray]:
    return [variable.numpy() for variable in model.trainable_variables]


def start_of_rank_0(model: keras.Model) -> list[np.ndarray]:
    """All weights that rank 0 starts with, told by Horovod's own means; on this rank they differ."""
    theirs = hvd.broadcast_object(model.get_weights(), root_rank=0)
    differ = [not np.array_equal(mine, other) for mine, other in zip(model.get_weights(), theirs, strict=True)]
    assert hvd.rank() == 0 or any(differ), "the ranks must start apart, or nothing is shown"
    return theirs


def train_on_batch(model: keras.Model, optimizer: Any, loss: Any, data: list[Batch], **options: Any) -> History:
    model.compile(optimizer=optimizer, loss=loss, **options)
    history = []
    for x, y in data:
        model.train_on_batch(x, y)
        history.append(weights_of(model))
    return history


class Recorder(keras.callbacks.Callback):
    """Keeps the trainable weights after each step of fit."""

    def __init__(self) -> None:
        super().__init__()
        self.history: History = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.history.append(weights_of(self.model))


def dataset_of(data: list[Batch]) -> tf.data.Dataset:
    """The batches one by one."""
    return tf.data.Dataset.from_tensor_slices(tuple(np.stack(part) for part in zip(*data, strict=True)))


def fit(model: keras.Model, optimizer: Any, loss: Any, data: list[Batch], **options: Any) -> History:
    model.compile(optimizer=optimizer, loss=loss, **options)
    recorder = Recorder()
    model.fit(dataset_of(data), callbacks=[recorder], verbose=0, shuffle=False)
    return recorder.history


def _loop(model: keras.Model, optimizer: Any, loss: Any, data: list[Batch], wrap: Callable[[Any], Any]) -> History:
    def step(x: tf.Tensor, y: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            value = loss(y, model(x, training=True))
        gradients = tape.gradient(value, [v.value for v in model.trainable_variables])
        optimizer.apply(gradients, model.trainable_variables)

    run = wrap(step)
    history = []
    for x, y in data:
        run(tf.constant(x), tf.constant(y))
        history.append(weights_of(model))
    return history


def tf_function(model: keras.Model, optimizer: Any, loss: Any, data: list[Batch]) -> History:
    return _loop(model, optimizer, loss, data, tf.function)


def untraced(model: keras.Model, optimizer: Any, loss: Any, data: list[Batch]) -> History:
    return _loop(model, optimizer, loss, data, lambda step: step)


def eager(model: keras.Model, optimizer: Any, loss: Any, data: list[Batch]) -> History:
    """Without a trace the first gradient would come before the broadcast, so the optimizer is built first."""
    optimizer.build(model.trainable_variables)
    return untraced(model, optimizer, loss, data)


LOOPS = {"train_on_batch": train_on_batch, "fit": fit, "tf.function": tf_function, "eager": eager}


def one_process(
    build: Callable[[], keras.Model], start: list[np.ndarray], optimizer: Any, loss: Any, data: list[Batch]
) -> History | None:
    """What plain Keras makes of the whole batches from the same start; on rank 0, None elsewhere."""
    if hvd.rank() != 0:
        return None
    model = build()
    model.set_weights(start)
    return train_on_batch(model, optimizer, loss, data, run_eagerly=True)


def assert_same(history: History, reference: History | None = None, tolerance: float = 1e-6) -> None:
    """After every step all ranks have the same bits, and those of one process to a relative tolerance.

    Relative: the largest difference in a variable, to the largest absolute value in it. All ranks come to the
    same verdict, so that no rank is left waiting.
    """
    histories = hvd.allgather_object(history)
    try:
        difference = _difference(histories, reference, tolerance)
    except Exception as error:  # told, so that it is raised on every rank
        difference = repr(error)
    told = hvd.broadcast_object(difference, root_rank=0)
    assert not told, told


def _difference(histories: list[History], reference: History | None, tolerance: float) -> str:
    first = histories[0]
    if len({len(history) for history in histories}) != 1 or not first:
        return f"numbers of steps: {[len(history) for history in histories]}"
    for step, weights in enumerate(first):
        for rank, history in enumerate(histories):
            for number, (mine, theirs) in enumerate(zip(weights, history[step], strict=True)):
                if not np.isfinite(theirs.astype("float64")).all():
                    return f"after step {step} variable {number} of rank {rank} is not finite"
                if mine.tobytes() != theirs.tobytes():
                    return f"after step {step} variable {number} of rank {rank} is not that of rank 0"
    if reference is None:
        return ""
    if len(reference) != len(first):
        return f"one process made {len(reference)} steps, the ranks {len(first)}"
    for step, (weights, others) in enumerate(zip(first, reference, strict=True)):
        for number, (mine, other) in enumerate(zip(weights, others, strict=True)):
            distance, scale = np.abs(mine - other).max(), np.abs(other).max()
            if not distance <= tolerance * scale:
                return f"after step {step} variable {number} is {distance:.2g} in {scale:.2g} from one process"
    return ""


def check_training(
    loop: str,
    make: Callable[[], Any],
    *,
    build: Callable[[], keras.Model] = dense_net,
    loss: Any = None,
    data: list[Batch] | None = None,
    plain: Callable[[], Any] | None = None,
    tolerance: float | None = 1e-6,
    wrap: bool = True,
    **options: Any,
) -> Any:
    """Train on shares and compare every step with one process; returns the distributed optimizer.

    Args:
        loop: a name in `LOOPS`.
        make: makes the optimizer that is wrapped with `options`.
        plain: makes that of one process, if it is another one.
        tolerance: relative; None: ranks are compared with one another only.
        wrap: False: what `make` makes is distributed already.
    """
    loss = loss or keras.losses.MeanSquaredError()
    data = batches() if data is None else data
    model = build()
    start = start_of_rank_0(model)
    reference = None if tolerance is None else one_process(build, start, (plain or make)(), loss, data)
    optimizer = hvd.DistributedOptimizer(make(), **options) if wrap else make()
    history = LOOPS[loop](model, optimizer, loss, [share(batch) for batch in data])
    assert_moved(start, model)
    assert_same(history, reference, tolerance or math.nan)
    check_same_state(optimizer)
    return optimizer


def assert_moved(start: list[np.ndarray], model: keras.Model) -> None:
    moved = [not np.array_equal(before, after) for before, after in zip(start, model.get_weights(), strict=True)]
    assert any(moved), "no weight moved, so nothing is shown"


def check_same_state(optimizer: Any) -> None:
    """The optimizer's own variables are the same on all ranks; gradients on their way to an update may differ."""
    state = [v.numpy() for v in optimizer.variables if "gradient_accumulator" not in v.path]
    assert_same([[np.asarray(value) for value in state]])
