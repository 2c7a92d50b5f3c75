"""Ranks seeded differently end every step with equal weights, and those of one process on the whole batch.

For each way to train and each kind of optimizer; the mutants without the exchange of gradients fail the same check.
"""

import functools
from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf
from comparing import (
    assert_same,
    batches,
    check_training,
    dataset_of,
    dense_net,
    fit,
    one_process,
    share,
    start_of_rank_0,
    train_on_batch,
    untraced,
    weights_of,
)

import tfperf.parallel.horovod as hvd
from tfperf.errors import HorovodError
from tfperf.parallel.horovod.collectives import Reduction
from tfperf.parallel.horovod.optimizer import Distributed

K = keras.optimizers

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: K.SGD(0.1),
    "sgd_momentum": lambda: K.SGD(0.1, momentum=0.9),
    "sgd_nesterov_clipvalue": lambda: K.SGD(0.1, momentum=0.9, nesterov=True, clipvalue=0.05),
    "adam": lambda: K.Adam(0.05),
    "adam_amsgrad_clipnorm": lambda: K.Adam(0.05, amsgrad=True, clipnorm=0.1),
    "adamw_global_clipnorm": lambda: K.AdamW(0.05, weight_decay=0.1, global_clipnorm=0.2),
    "adamw_clipnorm_ema": lambda: K.AdamW(0.05, clipnorm=0.1, use_ema=True, ema_momentum=0.9),
    "sgd_ema_overwrites": lambda: K.SGD(0.1, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2),
    "rmsprop": lambda: K.RMSprop(0.05),
    "schedule": lambda: K.SGD(K.schedules.ExponentialDecay(0.5, 1, 0.5)),
    "lion": lambda: K.Lion(0.01),
}


@pytest.mark.parametrize("optimizer", ["sgd", "sgd_momentum", "adamw_global_clipnorm"])
@pytest.mark.parametrize("loop", ["train_on_batch", "fit", "tf.function", "eager"])
def test_each_loop(loop: str, optimizer: str) -> None:
    check_training(loop, OPTIMIZERS[optimizer])


@pytest.mark.parametrize(
    "optimizer",
    [
        "sgd_nesterov_clipvalue",
        "adam",
        "adam_amsgrad_clipnorm",
        "adamw_clipnorm_ema",
        "sgd_ema_overwrites",
        "rmsprop",
        "schedule",
        "lion",
    ],
)
def test_each_optimizer(optimizer: str) -> None:
    check_training("train_on_batch", OPTIMIZERS[optimizer])


def without_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reduction, "__call__", lambda self, gradients: list(gradients))


@pytest.mark.parametrize("loop", ["train_on_batch", "fit", "tf.function", "eager"])
def test_without_the_exchange_it_is_noticed(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    without_exchange(monkeypatch)
    with pytest.raises((AssertionError, HorovodError), match=r"is not that of rank 0|ranks? .* differ"):
        check_training(loop, OPTIMIZERS["sgd"])


def test_without_the_mean_it_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal ranks are not enough: a sum where the mean belongs is told by one process."""
    with pytest.raises(AssertionError, match="from one process"):
        check_training("train_on_batch", OPTIMIZERS["sgd"], op=hvd.Sum)


def test_without_the_broadcast_it_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Distributed, "_start_equal_once", lambda self: None)
    with pytest.raises(AssertionError, match="is not that of rank 0"):
        check_training("train_on_batch", OPTIMIZERS["sgd"])


def test_clipping_before_the_exchange_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks stay equal when each clips its own gradient, and are not what one process is."""
    clip = keras.optimizers.SGD._clip_gradients
    monkeypatch.setattr(Distributed, "_clip_gradients", lambda self, grads: self._exchange(clip(self, grads)))
    monkeypatch.setattr(Distributed, "_finite", None, raising=False)
    with pytest.raises(AssertionError, match="from one process"):
        check_training("train_on_batch", lambda: K.SGD(0.1, clipvalue=0.05))


def test_seeds_differ_on_the_ranks() -> None:
    """What all of this stands on: without the wrapper, the same training leaves the ranks apart."""
    model = dense_net()
    history = train_on_batch(model, K.SGD(0.1), keras.losses.MeanSquaredError(), batches())
    first, second = hvd.allgather_object([weights.tolist() for weights in history[-1]])
    assert first != second


def test_steps_per_execution() -> None:
    """Several steps in one call of the compiled function."""
    data = batches(6)
    model = dense_net()
    loss = keras.losses.MeanSquaredError()
    reference = one_process(dense_net, start_of_rank_0(model), K.Adam(0.05), loss, data)
    model.compile(hvd.DistributedOptimizer(K.Adam(0.05)), loss, steps_per_execution=3)
    model.fit(dataset_of([share(batch) for batch in data]), shuffle=False, verbose=0)
    assert_same([weights_of(model)], reference and reference[-1:])
    assert model.optimizer.reductions == 6


def test_an_eager_fit_from_one_start() -> None:
    """Without a trace, the first gradient is computed before the optimizer is called: a callback broadcasts earlier."""
    model, data, loss = dense_net(), batches(), keras.losses.MeanSquaredError()
    reference = one_process(dense_net, start_of_rank_0(model), K.Adam(0.05), loss, data)
    model.compile(hvd.DistributedOptimizer(K.Adam(0.05)), loss, run_eagerly=True)
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback()]
    model.fit(dataset_of([share(batch) for batch in data]), shuffle=False, verbose=0, callbacks=callbacks)
    assert_same([weights_of(model)], reference and reference[-1:])


@pytest.mark.parametrize("loop", ["fit", "loop"])
def test_an_eager_start_apart_is_told(loop: str) -> None:
    """Weights are equal after the first step all the same."""
    model, data, loss = dense_net(), [share(batch) for batch in batches()], keras.losses.MeanSquaredError()
    optimizer = hvd.DistributedOptimizer(K.Adam(0.05))
    train = functools.partial(fit, run_eagerly=True) if loop == "fit" else untraced
    with pytest.warns(UserWarning, match="ranks had different weights"):
        history = train(model, optimizer, loss, data)
    assert_same(history)


def test_apply_gradients() -> None:
    """The old name of `apply`, and TensorFlow's variables instead of Keras's."""
    data, loss = batches(), keras.losses.MeanSquaredError()
    model = dense_net()
    reference = one_process(dense_net, start_of_rank_0(model), K.SGD(0.1, momentum=0.9), loss, data)
    optimizer = hvd.DistributedOptimizer(K.SGD(0.1, momentum=0.9))

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            value = loss(y, model(x, training=True))
        variables = [v.value for v in model.trainable_variables]
        optimizer.apply_gradients(zip(tape.gradient(value, variables), model.trainable_variables, strict=True))

    history = []
    for x, y in map(share, data):
        step(tf.constant(x), tf.constant(y))
        history.append(weights_of(model))
    assert_same(history, reference)
