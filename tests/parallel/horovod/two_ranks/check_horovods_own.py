"""What Horovod's own test_tensorflow2_keras.py (v0.28.1) checks, for Keras 3: docs/horovod_keras3.md has the table.

Each check has the name and the numbers of the original. Where the original only asks that nothing hangs, the values
are checked here.
"""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from comparing import assert_same, check_training, share, start_of_rank_0, weights_of

import tfperf.parallel.horovod as hvd

K = keras.optimizers
L = keras.layers


def small_net() -> keras.Model:
    """(rows, 3) -> (rows, 3, 2); ThresholdedReLU of the original is gone from Keras 3, ReLU has its threshold."""
    return keras.Sequential([keras.Input((3,)), L.Dense(2), L.RepeatVector(3), L.ReLU(threshold=0.5)])


def test_train_model_lr_schedule() -> None:
    initial_lr = 0.1 * hvd.size()
    model = small_net()
    optimizer = hvd.DistributedOptimizer(K.Adam())
    model.compile(loss="mse", optimizer=optimizer, metrics=["categorical_accuracy"])
    rng = np.random.default_rng(hvd.rank())
    x, y = rng.random((10, 3)), rng.random((10, 3, 2))
    rates = []

    class StoreLearningRate(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            rates.append(float(self.model.optimizer.learning_rate))

    def schedule(multiplier: Any, start: int, end: int) -> Any:
        return hvd.callbacks.LearningRateScheduleCallback(initial_lr, multiplier, start_epoch=start, end_epoch=end)

    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(initial_lr=initial_lr, warmup_epochs=5),
        schedule(1e-1, 5, 10),
        schedule(1e-2, 10, 15),
        schedule(lambda epoch: epoch, 15, 20),
        StoreLearningRate(),
    ]
    history = model.fit(x, y, batch_size=2, callbacks=callbacks, epochs=20, verbose=0).history

    warm_up = [initial_lr / 2 * (1 + epoch / 5) for epoch in range(1, 6)]
    first, second = [initial_lr * 0.1**epoch for epoch in range(5)], [initial_lr * 0.01**epoch for epoch in range(5)]
    linear = [initial_lr * epoch for epoch in range(15, 20)]
    np.testing.assert_allclose(rates, warm_up + first + second + linear, rtol=1e-6)
    assert hvd.allgather_object(rates) == [rates] * 2
    assert hvd.allgather_object(history["loss"]) == [history["loss"]] * 2
    assert_same([weights_of(model)])


def embedding_net() -> keras.Model:
    return keras.Sequential([keras.Input((10,), dtype="int32"), L.Embedding(1000, 64)])


def sentences(steps: int) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(5)
    return [(rng.integers(1000, size=(32, 10)), rng.random((32, 10, 64)).astype("float32")) for _ in range(steps)]


def test_sparse_as_dense() -> None:
    """RMSprop divides by the size of a gradient, so that rounding shows where halves of a batch nearly cancel."""
    options = {"build": embedding_net, "data": sentences(2), "sparse_as_dense": True}
    check_training("train_on_batch", lambda: K.RMSprop(1e-4), tolerance=1e-3, **options)
    check_training("train_on_batch", lambda: K.SGD(1.0), **options)


def test_legacy_optimizer() -> None:
    """Keras 3 has no legacy optimizers; what is not a Keras 3 optimizer is refused in one line."""
    with pytest.raises(ImportError, match="legacy"):
        K.legacy.Adam(learning_rate=0.0001)
    with pytest.raises(TypeError, match="expected a Keras 3 optimizer"):
        hvd.DistributedOptimizer(tf.compat.v1.train.AdamOptimizer(0.0001))


def test_sparse_as_dense_with_grad_aggregation() -> None:
    optimizer = check_training(
        "train_on_batch",
        lambda: K.RMSprop(1e-4, gradient_accumulation_steps=2),
        build=embedding_net,
        data=sentences(3),
        tolerance=1e-3,
        sparse_as_dense=True,
    )
    assert optimizer.reductions == 1
    held = [np.abs(v.numpy()).max() > 0 for v in optimizer.variables if "gradient_accumulator" in v.path]
    assert held == [True]  # the third micro-step waits for a fourth


def test_grad_aggregation_with_inf_grad() -> None:
    """The infinity is in the first of two updates; the second one is not touched by it."""
    x = keras.Variable(0.0)
    optimizer = hvd.DistributedOptimizer(K.SGD(0.01, gradient_accumulation_steps=2), sparse_as_dense=True)
    seen = []
    for gradient in (np.inf, 1.0, 1.0, 1.0):
        optimizer.apply([tf.constant(gradient if hvd.rank() == 0 else 1.0)], [x])
        seen.append(float(x.numpy()))
    assert hvd.allgather_object(seen) == [[0.0, 0.0, 0.0, pytest.approx(-0.01)]] * 2
    assert optimizer.skipped_steps == 1


def test_from_config() -> None:
    optimizer = hvd.DistributedOptimizer(K.Adam(0.02, clipnorm=0.5))
    config = optimizer.get_config()
    assert config == K.Adam.from_config(config).get_config()
    copies = [optimizer.from_config(dict(config)), type(optimizer).from_config(dict(config))]
    for copy in copies:
        assert copy.get_config() == config
        check_training("train_on_batch", lambda copy=copy: copy, plain=lambda: K.Adam(0.02, clipnorm=0.5), wrap=False)


def test_elastic_state() -> None:
    v = 1.0 if hvd.rank() == 0 else 2.0
    first = keras.Sequential([keras.Input((2,)), L.Dense(2, activation="softmax")])
    first.set_weights([np.full((2, 2), v, "float32"), np.full(2, v, "float32")])
    other = [np.array([[1.0, 2.0], [3.0, 4.0]], "float32"), np.array([0.0, 0.0], "float32")]
    optimizer = K.Adam(0.001 * hvd.size())
    optimizer.build(first.trainable_variables)
    optimizer.variables[2].assign(np.full(optimizer.variables[2].shape, v, "float32"))  # a momentum

    state = hvd.elastic.KerasState(first, optimizer, batch=20 + hvd.rank(), epoch=10 + hvd.rank())
    state.sync()
    synced = [np.ones_like(w) for w in first.get_weights()]
    momentum = np.ones(optimizer.variables[2].shape, "float32")

    def same(values: list[np.ndarray], batch: int, epoch: int) -> list[bool]:
        weights = zip(state.model.get_weights(), values, strict=True)
        return [np.array_equal(mine, value) for mine, value in weights] + [state.batch == batch, state.epoch == epoch]

    seen = [same(synced, 20, 10), [np.array_equal(optimizer.variables[2].numpy(), momentum)]]

    first.set_weights(other)  # partly modified, then restored
    optimizer.variables[2].assign(momentum * 7)
    state.batch, state.epoch = 21, 11
    state.restore()
    seen += [same(synced, 20, 10), [np.array_equal(optimizer.variables[2].numpy(), momentum)]]

    first.set_weights(other)  # partly modified, then committed
    optimizer.variables[2].assign(momentum * 7)
    state.batch, state.epoch = 21, 11
    state.commit()
    first.set_weights(synced)
    state.batch = 0
    state.restore()
    seen += [same(other, 21, 11), [np.array_equal(optimizer.variables[2].numpy(), momentum * 7)]]
    assert hvd.allgather_object(seen) == [[[True] * len(part) for part in seen]] * 2


class Adding(K.Optimizer):
    """Adds the gradient to the variable: what was exchanged can be read from it."""

    def __init__(self, name: str = "test", **options: Any) -> None:
        super().__init__(learning_rate=0.1, name=name, **options)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        self.assign_add(variable, gradient)


PASSES = 4


@pytest.mark.parametrize("average", ["averaged", "summed"])
def test_gradient_aggregation(average: str) -> None:
    """loss = x - y[0], so that x grows by 1 and y[0] falls by 1 in each update, or by the micro-steps of it."""
    optimizer = hvd.DistributedOptimizer(
        Adding(gradient_accumulation_steps=PASSES),
        average_aggregated_gradients=average == "averaged",
        sparse_as_dense=True,
    )
    x, y = tf.Variable([0.0]), tf.Variable([1.0, 2.0])
    optimizer.build([x, y])

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = x - tf.gather(y, [0])  # its gradient is an IndexedSlices
        optimizer.apply(tape.gradient(loss, [x, y]), [x, y])

    seen, expected = [], []
    for micro_step in range(1, 11):
        step()
        grown = micro_step // PASSES * (1 if average == "averaged" else PASSES)
        seen.append([x.numpy().tolist(), y.numpy().tolist(), int(optimizer.iterations), optimizer.reductions])
        expected.append([[grown], [1 - grown, 2], micro_step // PASSES, micro_step // PASSES])
    assert hvd.allgather_object(seen) == [expected] * 2
    held = [v.numpy().tolist() for v in optimizer.variables if "gradient_accumulator" in v.path]
    assert held == [[2], [-2, 0]]  # 10 micro-steps: two are on their way to the third update


@pytest.mark.parametrize("average", ["averaged", "summed"])
def test_gradient_aggregation_with_local_vars(average: str) -> None:
    """loss = X - (rank + 1) Y[:, 0] for eight pairs, half of which are local."""
    optimizer = hvd.DistributedOptimizer(
        Adding(gradient_accumulation_steps=PASSES),
        average_aggregated_gradients=average == "averaged",
        sparse_as_dense=True,
    )
    pairs, local = 8, 4
    xs = [tf.Variable([0.0]) for _ in range(pairs)]
    ys = [tf.Variable([1.0, 2.0]) for _ in range(pairs)]
    for x, y in zip(xs[:local], ys[:local], strict=True):
        optimizer.register_local_var(x)
        optimizer.register_local_var(y)
    optimizer.build([*xs, *ys])

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = [x - float(hvd.rank() + 1) * tf.gather(y, [0]) for x, y in zip(xs, ys, strict=True)]
        optimizer.apply(tape.gradient(loss, [*xs, *ys]), [*xs, *ys])

    seen, expected = [], []
    for micro_step in range(1, 11):
        step()
        updates = micro_step // PASSES * (1 if average == "averaged" else PASSES)
        seen.append([[float(x[0]) for x in xs], [y.numpy().tolist() for y in ys]])
        mine, all_ranks = (hvd.rank() + 1) / hvd.size(), (hvd.size() + 1) / 2
        expected.append(
            [
                [updates / hvd.size()] * local + [updates] * (pairs - local),
                [[1 - updates * mine, 2]] * local + [[1 - updates * all_ranks, 2]] * (pairs - local),
            ]
        )
    told = [mine == theirs for mine, theirs in zip(seen, expected, strict=True)]
    assert hvd.allgather_object(told) == [[True] * 10] * 2
    assert optimizer.reductions == 2


@pytest.mark.parametrize("scale", ["scaled", "as_they_are"])
@pytest.mark.parametrize("local_layers", ["0", "1", "2"])
def test_partial_distributed_optimizer(local_layers: str, scale: str) -> None:
    """Gradients of local layers are this rank's, those of the others the mean; local weights are not broadcast."""
    constant = keras.initializers.Constant(hvd.rank() + 1.0)
    dense = {"kernel_initializer": constant, "bias_initializer": constant}
    model = keras.Sequential(
        [keras.Input((3,)), L.Dense(2, **dense), L.RepeatVector(3), L.TimeDistributed(L.Dense(3, **dense))]
    )
    local = model.layers[: int(local_layers)]
    optimizer = hvd.PartialDistributedOptimizer(
        K.SGD(1.0), sparse_as_dense=True, local_layers=local, scale_local_gradients=scale == "scaled"
    )
    optimizer.build(model.trainable_variables)
    before = weights_of(model)
    rng = np.random.default_rng(hvd.rank())
    x, y = tf.constant(rng.random((1, 3)), tf.float32), tf.constant(rng.random((1, 3, 3)), tf.float32)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
    gradients = [g.numpy() for g in tape.gradient(loss, [v.value for v in model.trainable_variables])]
    optimizer.apply(gradients, model.trainable_variables)

    everyones = hvd.allgather_object(gradients)
    start = hvd.allgather_object(before)
    locals_ = {id(v) for layer in local for v in layer.trainable_variables}
    problems = []
    for number, variable in enumerate(model.trainable_variables):
        if id(variable) in locals_:
            step = gradients[number] / (hvd.size() if scale == "scaled" else 1)
            good = (before[number] == hvd.rank() + 1).all()
        else:
            step = sum(gradient[number] for gradient in everyones) / hvd.size()
            good = np.array_equal(start[0][number], start[1][number])
        if not good or not np.allclose(before[number] - variable.numpy(), step, rtol=1e-5, atol=1e-7):
            problems.append(variable.path)
    assert hvd.allgather_object(problems) == [[], []]
    assert not np.allclose(everyones[0][0], everyones[1][0])


def test_broadcast_global_variables_callback_with_local_vars() -> None:
    root_rank = hvd.size() - 1
    constant = keras.initializers.Constant(hvd.rank())
    dense = {"kernel_initializer": constant, "bias_initializer": constant, "trainable": False}
    layers = [L.Dense(3, **dense) for _ in range(5)]
    model = keras.Sequential([keras.Input((3,)), *layers[:4], L.RepeatVector(3), layers[4]])
    model.compile(loss="mse", metrics=["categorical_accuracy"])
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(root_rank, local_variables=model.layers[0].variables)
    rng = np.random.default_rng(0)
    with pytest.warns(UserWarning, match="any trainable weights"):
        model.fit(rng.random((1, 3)), rng.random((1, 3, 3)), callbacks=[callback], verbose=0)
    seen = [[np.unique(variable.numpy()).tolist() for variable in layer.variables] for layer in layers]
    assert hvd.allgather_object(seen) == [[[[rank]] * 2] + [[[root_rank]] * 2] * 4 for rank in range(2)]


def test_a_broadcast_in_training() -> None:
    """The same with weights that are trained: local ones stay the rank's own until the first update."""
    model = small_net()
    start_of_rank_0(model)
    mine = [v.numpy() for v in model.layers[0].variables]
    optimizer = hvd.DistributedOptimizer(K.SGD(0.0), local_layers=model.layers[0])
    model.compile(optimizer, "mse")
    x, y = share((np.ones((2, 3), "float32"), np.ones((2, 3, 2), "float32")))
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=model.layers[0].variables)
    model.fit(x, y, callbacks=[callback], verbose=0)
    kept = [np.array_equal(v.numpy(), value) for v, value in zip(model.layers[0].variables, mine, strict=True)]
    assert hvd.allgather_object(kept) == [[True, True]] * 2
