"""A gradient that is not finite on one rank: all ranks leave the update out together, and train on."""

import itertools
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from comparing import Batch, assert_same, batches, dataset_of, dense_net, share, start_of_rank_0, weights_of

import tfperf.parallel.horovod as hvd

K = keras.optimizers

BAD = {"nan": np.nan, "inf": np.inf, "minus_inf": -np.inf}


def spoiled(batch: Batch, value: float, rank: int = 1) -> Batch:
    """A rank's share of a batch, with one input of one rank that makes its gradient not finite."""
    x, y = share(batch)
    x = x.copy()
    if hvd.rank() == rank:
        x[1, 2] = value
    return x, y


def everywhere(value: Any) -> list[Any]:
    return hvd.allgather_object(value)


def trained(make: Any, data: list[Batch], **options: Any) -> tuple[keras.Model, list[list[np.ndarray]]]:
    """A model trained on batches, and its weights before the first and after each one."""
    model = dense_net()
    start = start_of_rank_0(model)
    model.compile(hvd.DistributedOptimizer(make(), **options), "mse")
    history = [start]
    for x, y in data:
        model.train_on_batch(x, y)
        history.append(weights_of(model))
    assert_same(history[1:])
    return model, history


def moved(history: list[list[np.ndarray]]) -> list[bool]:
    """Which step moved a weight."""
    pairs = itertools.pairwise(history)
    return [any(not np.array_equal(a, b) for a, b in zip(one, two, strict=True)) for one, two in pairs]


@pytest.mark.parametrize("kind", ["nan", "inf", "minus_inf"])
@pytest.mark.parametrize("rank", ["0", "1"])
def test_the_step_is_left_out_on_all_ranks(rank: str, kind: str) -> None:
    first, second, third = batches(3)
    data = [share(first), spoiled(second, BAD[kind], int(rank)), share(third)]
    model, history = trained(lambda: K.AdamW(0.05, weight_decay=0.1), data)
    assert moved(history) == [True, False, True]
    assert everywhere(model.optimizer.skipped_steps) == [1, 1]
    assert everywhere(model.optimizer.reductions) == [3, 3]
    assert all(np.isfinite(v.numpy()).all() for v in model.optimizer.variables)


@pytest.mark.parametrize("clip", ["clipnorm", "global_clipnorm", "clipvalue"])
def test_clipping_does_not_hide_it(clip: str) -> None:
    first, second = batches(2)
    model, history = trained(lambda: K.SGD(0.1, **{clip: 0.1}), [spoiled(first, np.inf), share(second)])
    assert moved(history) == [False, True]
    assert everywhere(model.optimizer.skipped_steps) == [1, 1]


def test_without_skipping_the_weights_are_lost() -> None:
    """What the default spares: with skip_nonfinite=False the NaN of one rank is in the weights of both."""
    model = dense_net()
    model.compile(hvd.DistributedOptimizer(K.SGD(0.1), skip_nonfinite=False), "mse")
    model.train_on_batch(*spoiled(batches(1)[0], np.nan))
    lost = [bool(np.isnan(weights).any()) for weights in weights_of(model)]
    assert everywhere(any(lost)) == [True, True]
    assert model.optimizer.skipped_steps == 0


def test_large_finite_gradients_are_not_left_out() -> None:
    """Values whose sum is beyond float32 are finite nevertheless."""
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, use_bias=False)])
    model.compile(hvd.DistributedOptimizer(K.SGD(1e-38)), lambda y, predicted: predicted)
    model.train_on_batch(np.full((2, 4), 2e38, "float32"), np.zeros((2, 2), "float32"))
    assert everywhere(model.optimizer.skipped_steps) == [0, 0]


@pytest.mark.parametrize("micro_step", ["0", "1"])
def test_accumulation_starts_clean_afterwards(micro_step: str) -> None:
    """The update with the bad micro-step is left out; the next one is what it is without that."""
    data = [share(batch) for batch in batches(4)]
    data[int(micro_step)] = spoiled(batches(4)[int(micro_step)], np.nan)
    model, history = trained(lambda: K.SGD(0.1, gradient_accumulation_steps=2), data)
    assert moved(history) == [False, False, False, True]
    assert everywhere(model.optimizer.skipped_steps) == [1, 1]
    assert everywhere(model.optimizer.reductions) == [2, 2]

    other = dense_net()
    other.set_weights(history[0])
    other.compile(hvd.DistributedOptimizer(K.SGD(0.1, gradient_accumulation_steps=2)), "mse")
    for x, y in data[2:]:
        other.train_on_batch(x, y)
    assert_same([weights_of(model)])
    for mine, theirs in zip(weights_of(model), weights_of(other), strict=True):
        assert np.array_equal(mine, theirs)


@pytest.mark.parametrize("kind", ["nan", "inf"])
def test_sparse_gradients(kind: str) -> None:
    def loss(y: Any, predicted: Any) -> Any:
        return y * predicted

    model = keras.Sequential([keras.Input((2,), dtype="int32"), keras.layers.Embedding(5, 2)])
    start_of_rank_0(model)
    model.compile(hvd.DistributedOptimizer(K.SGD(0.1)), loss)
    x, y = np.array([[0, 1]]), np.ones((1, 2, 2), "float32")
    before = hvd.broadcast_object(weights_of(model))
    bad = y * BAD[kind] if hvd.rank() == 1 else y
    model.train_on_batch(x, bad)
    after = weights_of(model)
    model.train_on_batch(x, y)
    assert_same([after, weights_of(model)])
    assert moved([before, after, weights_of(model)]) == [False, True]
    assert everywhere(model.optimizer.skipped_steps) == [1, 1]


@pytest.mark.parametrize("loop", ["eager", "tf.function"])
def test_a_local_gradient_that_is_not_finite(loop: str) -> None:
    """It is not exchanged; all ranks leave the update out nevertheless, and shared weights stay equal."""
    local, shared = keras.Variable(1.0), keras.Variable(1.0)
    optimizer = hvd.DistributedOptimizer(K.SGD(0.5))
    optimizer.register_local_var(local)
    optimizer.build([local, shared])

    def step(gradient: tf.Tensor) -> None:
        optimizer.apply([gradient, tf.ones(())], [local, shared])

    run = tf.function(step) if loop == "tf.function" else step
    seen = []
    for gradient in (np.nan if hvd.rank() == 1 else 1.0, 1.0):
        run(tf.constant(gradient, tf.float32))
        seen.append([float(local.numpy()), float(shared.numpy())])
    assert everywhere(seen) == [[[1.0, 1.0], [0.75, 0.5]]] * 2  # a local gradient is divided by the number of ranks
    assert everywhere(optimizer.skipped_steps) == [1, 1]


@pytest.mark.parametrize("way", ["by_compile", "outside", "inside"])
def test_loss_scale_halves_on_all_ranks(way: str) -> None:
    """Keras looks at its own rank's gradients alone; here all ranks halve the scale, and none waits for another."""
    keras.config.set_dtype_policy("mixed_float16" if way == "by_compile" else "float32")
    model = dense_net()
    start = start_of_rank_0(model)
    if way == "inside":
        optimizer = hvd.DistributedOptimizer(K.LossScaleOptimizer(K.Adam(0.05)))
    else:
        optimizer = hvd.DistributedOptimizer(K.Adam(0.05))
        optimizer = K.LossScaleOptimizer(optimizer) if way == "outside" else optimizer
    model.compile(optimizer, "mse")
    first, second, third = batches(3)
    history, scales = [start], []
    for x, y in [share(first), spoiled(second, np.inf), share(third)]:
        model.train_on_batch(x, y)
        history.append(weights_of(model))
        scales.append(float(model.optimizer.dynamic_scale))
    assert_same(history[1:])
    assert moved(history) == [True, False, True]
    assert everywhere(scales) == [[2.0**15, 2.0**14, 2.0**14]] * 2
    assert everywhere(model.optimizer.inner_optimizer.skipped_steps) == [1, 1]
    assert everywhere(int(model.optimizer.iterations)) == [2, 2]


def test_loss_scale_with_accumulation() -> None:
    """A bad micro-step is no micro-step: the update comes one batch later, on all ranks."""
    model = dense_net()
    start = start_of_rank_0(model)
    optimizer = hvd.DistributedOptimizer(K.SGD(0.1, gradient_accumulation_steps=2))
    model.compile(K.LossScaleOptimizer(optimizer), "mse")
    one, two, three, four, five = batches(5)
    history = [start]
    for x, y in [share(one), spoiled(two, np.nan), share(three), share(four), share(five)]:
        model.train_on_batch(x, y)
        history.append(weights_of(model))
    assert_same(history[1:])
    assert moved(history) == [False, False, True, False, True]
    assert everywhere(optimizer.skipped_steps) == [1, 1]
    assert everywhere(optimizer.reductions) == [2, 2]


def test_in_fit_with_all_callbacks() -> None:
    model = dense_net()
    start_of_rank_0(model)
    model.compile(hvd.DistributedOptimizer(K.Adam(0.05)), "mse")
    data = [share(batch) for batch in batches(4)]
    data[2] = spoiled(batches(4)[2], np.nan)
    model.fit(dataset_of(data), epochs=2, shuffle=False, verbose=0, callbacks=hvd.callbacks.default(check_every=1))
    assert_same([weights_of(model)])
    assert everywhere(model.optimizer.skipped_steps) == [2, 2]
