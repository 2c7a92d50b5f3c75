"""Accumulation, sparse gradients, precision, the options of DistributedOptimizer, and nets of several kinds.

As in check_every_step.py: equal ranks after every step, and equal to one process on the whole batch.
"""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from comparing import (
    Batch,
    assert_same,
    batches,
    check_training,
    dataset_of,
    dense_net,
    share,
    start_of_rank_0,
    train_on_batch,
    weights_of,
)

import tfperf.parallel.horovod as hvd
from tfperf.errors import HorovodError
from tfperf.parallel.horovod.collectives import Reduction

K = keras.optimizers
L = keras.layers


def sgd() -> Any:
    return K.SGD(0.1, momentum=0.9)


@pytest.mark.parametrize("loop", ["train_on_batch", "fit", "tf.function", "eager"])
@pytest.mark.parametrize("steps", ["2", "3"])
def test_accumulation(steps: str, loop: str) -> None:
    def make() -> Any:
        return K.AdamW(0.05, weight_decay=0.1, global_clipnorm=0.2, gradient_accumulation_steps=int(steps))

    optimizer = check_training(loop, make, data=batches(6))
    assert optimizer.reductions == 6 // int(steps)
    assert int(optimizer.iterations) == 6 // int(steps)


def test_accumulation_that_sums() -> None:
    """The sum of two micro-steps, as Horovod has it by default: with plain SGD, twice the learning rate."""
    check_training(
        "train_on_batch",
        lambda: K.SGD(0.1, gradient_accumulation_steps=2),
        plain=lambda: K.SGD(0.2, gradient_accumulation_steps=2),
        data=batches(6),
        average_aggregated_gradients=False,
    )


def test_reductions_without_accumulation() -> None:
    assert check_training("train_on_batch", sgd).reductions == 4


def embedding_net() -> keras.Model:
    """(rows, 4) whole numbers below 10 -> (rows, 3)."""
    return keras.Sequential([keras.Input((4,), dtype="int32"), L.Embedding(10, 3), L.Flatten(), L.Dense(3)])


def words(steps: int = 4) -> list[Batch]:
    """Batches in which a word comes several times, on one rank and on both; some words never come."""
    rng = np.random.default_rng(3)
    return [(rng.integers(7, size=(8, 4)), rng.normal(size=(8, 3)).astype("float32")) for _ in range(steps)]


SPARSE: dict[str, tuple[Callable[[], Any], dict[str, Any], float]] = {
    "sgd": (lambda: K.SGD(0.1), {}, 1e-6),
    "momentum_clipnorm": (lambda: K.SGD(0.1, momentum=0.9, clipnorm=0.1), {}, 1e-6),
    "adam": (lambda: K.Adam(0.05), {}, 1e-6),
    "adam_accumulates": (lambda: K.Adam(0.05, gradient_accumulation_steps=2), {}, 1e-6),
    "sum": (lambda: K.SGD(0.05), {"op": hvd.Sum}, 1e-6),
    "fp16": (lambda: K.SGD(0.1), {"compression": hvd.Compression.fp16}, 2e-3),
}


def densely(optimizer: Any) -> Any:
    """The optimizer of one process with dense gradients.

    Keras clips and squares rows of a sparse gradient one by one, also those of the same word, so Adam and clipnorm
    make something else of it than of the dense one.
    """
    apply = optimizer.apply
    optimizer.apply = lambda grads, variables=None: apply([tf.convert_to_tensor(g) for g in grads], variables)
    return optimizer


@pytest.mark.parametrize("form", ["sparse", "as_dense"])
@pytest.mark.parametrize("case", ["sgd", "momentum_clipnorm", "adam", "adam_accumulates", "sum", "fp16"])
def test_embedding(case: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gathered, gather = [], Reduction._gather
    monkeypatch.setattr(Reduction, "_gather", lambda *arguments: gathered.append(1) or gather(*arguments))
    make, options, tolerance = SPARSE[case]
    options = options | {"sparse_as_dense": form == "as_dense"}

    def plain() -> Any:
        optimizer = K.SGD(0.1) if case == "sum" else make()
        return densely(optimizer) if form == "as_dense" else optimizer

    check_training(
        "train_on_batch", make, plain=plain, build=embedding_net, data=words(), tolerance=tolerance, **options
    )
    assert bool(gathered) == (form == "sparse" and case != "adam_accumulates")  # Keras accumulates dense gradients


OPTIONS: dict[str, tuple[Callable[[], Any], Callable[[], Any], dict[str, Any], float]] = {
    "fp16": (sgd, sgd, {"compression": hvd.Compression.fp16}, 2e-3),
    "sum": (lambda: K.SGD(0.05), lambda: K.SGD(0.1), {"op": hvd.Sum}, 1e-6),
    "predivide": (sgd, sgd, {"gradient_predivide_factor": 2.0}, 1e-6),
    "predivide_by_three": (sgd, sgd, {"gradient_predivide_factor": 3.0}, 1e-6),
    "two_groups": (sgd, sgd, {"groups": 2}, 1e-6),
    "more_groups_than_weights": (sgd, sgd, {"groups": 9}, 1e-6),
    "named": (sgd, sgd, {"name": "mine"}, 1e-6),
    "no_skipping": (sgd, sgd, {"skip_nonfinite": False}, 1e-6),
    "loss_scale_factor": (lambda: K.SGD(0.1, loss_scale_factor=64.0),) * 2 + ({}, 1e-6),
}


@pytest.mark.parametrize(
    "case",
    [
        "fp16",
        "sum",
        "predivide",
        "predivide_by_three",
        "two_groups",
        "more_groups_than_weights",
        "named",
        "no_skipping",
        "loss_scale_factor",
    ],
)
def test_option(case: str) -> None:
    make, plain, options, tolerance = OPTIONS[case]
    loop = "train_on_batch"  # it scales the loss; loops of one's own call optimizer.scale_loss
    check_training(loop, make, plain=plain, tolerance=tolerance, **options)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "bfloat16", "mixed_float16", "float16", "float64"])
def test_precision(policy: str) -> None:
    """Ranks are equal bit by bit; float64 is compared with one process too."""
    keras.config.set_dtype_policy(policy)
    check_training("train_on_batch", sgd, tolerance=1e-6 if policy == "float64" else None)


@pytest.mark.parametrize("way", ["by_compile", "outside", "inside"])
def test_loss_scale(way: str) -> None:
    """LossScaleOptimizer put around by compile, by hand around the distributed one, and distributed by hand."""
    keras.config.set_dtype_policy("mixed_float16")
    model = dense_net()
    start = start_of_rank_0(model)
    if way == "inside":
        optimizer = hvd.DistributedOptimizer(K.LossScaleOptimizer(sgd()))
    else:
        optimizer = hvd.DistributedOptimizer(sgd())
        if way == "outside":
            optimizer = K.LossScaleOptimizer(optimizer)
    history = train_on_batch(model, optimizer, "mse", [share(batch) for batch in batches()])
    assert_same(history)
    assert isinstance(model.optimizer, K.LossScaleOptimizer)
    assert model.optimizer.inner_optimizer.reductions == 4
    assert model.optimizer.inner_optimizer.skipped_steps == 0
    assert float(model.optimizer.dynamic_scale) == 2.0**15
    assert not np.array_equal(start[0], weights_of(model)[0])


def test_float32_with_a_loss_scale_is_one_process() -> None:
    check_training("train_on_batch", lambda: K.LossScaleOptimizer(sgd()))


def two_outputs() -> keras.Model:
    inputs = keras.Input((5,))
    hidden = L.Dense(4, "tanh", bias_initializer="random_normal")(inputs)
    outputs = {name: L.Dense(3, name=name, bias_initializer="random_normal")(hidden) for name in ("a", "b")}
    return keras.Model(inputs, outputs)


def test_two_outputs() -> None:
    data = [(x, {"a": y, "b": -y[:, ::-1]}) for x, y in batches()]
    loss = {"a": keras.losses.MeanSquaredError(), "b": keras.losses.Huber()}
    check_training("train_on_batch", sgd, build=two_outputs, loss=loss, data=data)


def frozen_net() -> keras.Model:
    model = dense_net()
    model.layers[0].trainable = False
    return model


def test_frozen_layer() -> None:
    """A frozen layer is nobody's to exchange; BroadcastGlobalVariablesCallback makes it equal."""
    model = frozen_net()
    start = start_of_rank_0(model)
    reference_net = frozen_net()
    reference_net.set_weights(start)
    data = batches()
    reference = train_on_batch(reference_net, sgd(), "mse", data, run_eagerly=True)
    optimizer = hvd.DistributedOptimizer(sgd())
    model.compile(optimizer, "mse")
    model.fit(
        dataset_of([share(batch) for batch in data]),
        shuffle=False,
        verbose=0,
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback()],
    )
    assert_same([weights_of(model)], reference[-1:])
    assert_same([model.get_weights()])
    assert all(np.array_equal(a, b) for a, b in zip(model.layers[0].get_weights(), start[:2], strict=True))


def test_a_weight_without_a_gradient() -> None:
    """A layer that the loss does not see: Keras warns, and the others are exchanged."""
    inputs = keras.Input((5,))
    hidden = L.Dense(4, "tanh")(inputs)
    model = keras.Model(inputs, [L.Dense(3)(hidden), L.Dense(2)(hidden)])
    start_of_rank_0(model)
    model.compile(hvd.DistributedOptimizer(sgd()), [keras.losses.MeanSquaredError(), None])
    history = []
    for x, y in map(share, batches()):
        with pytest.warns(UserWarning, match="Gradients do not exist") if not history else pytest.MonkeyPatch.context():
            model.train_on_batch(x, [y, y[:, :2]])
        history.append(weights_of(model))
    assert_same(history)


def normalised_net() -> keras.Model:
    return keras.Sequential([keras.Input((5,)), L.BatchNormalization(), L.Dense(4, "tanh"), L.Dense(3)])


def test_batch_normalization() -> None:
    """With the same inputs and other targets on each rank, statistics are those of the whole batch."""
    data = [(np.concatenate([x[:4], x[:4]]), y) for x, y in batches()]
    check_training("train_on_batch", sgd, build=normalised_net, data=data)


def test_batch_normalization_with_other_inputs() -> None:
    """Statistics differ while an epoch lasts, weights do not; after it the guard averages the statistics."""
    model = normalised_net()
    start_of_rank_0(model)
    model.compile(hvd.DistributedOptimizer(sgd()), "mse")
    data = dataset_of([share(batch) for batch in batches()])

    class Statistics(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.seen = [v.numpy() for v in model.layers[0].non_trainable_variables]

    statistics = Statistics()
    model.fit(data, shuffle=False, verbose=0, callbacks=[statistics, *hvd.callbacks.default()])
    apart = hvd.allgather_object(statistics.seen)
    assert not np.array_equal(apart[0][0], apart[1][0])
    assert_same([model.get_weights()])
    for variable, first, second in zip(model.layers[0].non_trainable_variables, *apart, strict=True):
        np.testing.assert_allclose(variable.numpy(), (first + second) / 2, rtol=1e-6)


def test_dropout() -> None:
    """Each rank drops other units, and weights stay equal."""
    model = keras.Sequential([keras.Input((5,)), L.Dense(8, "tanh"), L.Dropout(0.5), L.Dense(3)])
    start_of_rank_0(model)
    history = train_on_batch(model, hvd.DistributedOptimizer(sgd()), "mse", [share(batch) for batch in batches()])
    assert_same(history)


def test_dropout_of_one_seed_is_one_process() -> None:
    """With the seeds broadcast and one mask for all rows, dropout is that of one process on the whole batch."""

    def build() -> keras.Model:
        dropout = L.Dropout(0.5, noise_shape=(1, 8))
        return keras.Sequential([keras.Input((5,)), L.Dense(8, "tanh"), dropout, L.Dense(3)])

    model, data = build(), batches()
    start = start_of_rank_0(model)
    reference_net = build()
    reference_net.set_weights(start)
    seeds = [v.numpy() for v in model.non_trainable_variables]
    assert len(seeds) == 1
    assert len(set(map(bytes, hvd.allgather_object(seeds[0].tobytes())))) == 2
    for variable, value in zip(reference_net.non_trainable_variables, seeds, strict=True):
        variable.assign(value)
    reference = train_on_batch(reference_net, sgd(), "mse", data, run_eagerly=True)  # rank 0's counts
    model.compile(hvd.DistributedOptimizer(sgd()), "mse")
    model.fit(
        dataset_of([share(batch) for batch in data]),
        shuffle=False,
        verbose=0,
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback()],
    )
    assert_same([weights_of(model)], reference[-1:])


def test_clipping_by_the_norm_of_all_keeps_shared_weights_equal_beside_local_ones() -> None:
    """The norm of a local layer's gradient, which each rank has its own of, scales no shared gradient."""
    model = dense_net()
    optimizer = hvd.DistributedOptimizer(K.SGD(0.1, global_clipnorm=0.01), local_layers=model.layers[0])
    model.compile(optimizer, "mse")
    shared, local = [], []
    for x, y in map(share, batches()):
        before = model.layers[0].get_weights()
        model.train_on_batch(x, y)
        shared.append([v.numpy() for v in model.layers[1].variables])
        local.append([new - old for new, old in zip(model.layers[0].get_weights(), before, strict=True)])
    assert_same(shared)
    apart = hvd.allgather_object([[step.tolist() for step in steps] for steps in local])
    assert apart[0] != apart[1]
    for steps in local:
        length = np.sqrt(sum((step**2).sum() for step in steps))
        assert length == pytest.approx(0.1 * 0.01, rel=1e-3)  # the rate times the norm: they are clipped as well


def test_jit_compile_is_refused() -> None:
    """XLA on a CPU cannot compile Horovod's allreduce: an error on every rank that says so, and nothing hangs."""
    model = dense_net()
    model.compile(hvd.DistributedOptimizer(sgd()), "mse", jit_compile=True)
    x, y = share(batches(1)[0])
    with pytest.raises((HorovodError, tf.errors.InvalidArgumentError), match="Horovod"):
        model.train_on_batch(x, y)


def test_jit_compile_is_refused_before_the_first_batch() -> None:
    model = dense_net()
    model.compile(hvd.DistributedOptimizer(sgd()), "mse", jit_compile=True)
    with pytest.raises(HorovodError, match="jit_compile"):
        model.fit(dataset_of([share(batches(1)[0])]), shuffle=False, verbose=0, callbacks=hvd.callbacks.default())


def test_wrong_options_are_refused() -> None:
    with pytest.raises(ValueError, match="wrap it once"):
        hvd.DistributedOptimizer(hvd.DistributedOptimizer(sgd()))
    with pytest.raises(ValueError, match="expected op"):
        hvd.DistributedOptimizer(sgd(), op=17)
    with pytest.raises(ValueError, match="gradient_predivide_factor"):
        hvd.DistributedOptimizer(sgd(), op=hvd.Sum, gradient_predivide_factor=2.0)
    with pytest.raises(ValueError, match="groups"):
        hvd.DistributedOptimizer(sgd(), groups=0)
    with pytest.raises(TypeError, match="received str"):
        hvd.DistributedOptimizer("sgd")


def test_adasum_is_refused() -> None:
    """Horovod has it with MPI only, and these ranks meet over Gloo: told before the first step."""
    with pytest.raises(HorovodError, match=r"over MPI for op=hvd\.Adasum, it runs over Gloo"):
        hvd.DistributedOptimizer(sgd(), op=hvd.Adasum)


def test_two_models_by_turns() -> None:
    """Exchanges of one optimizer are not taken for those of another."""
    models = [dense_net(), dense_net()]
    for model in models:
        model.compile(hvd.DistributedOptimizer(sgd()), "mse")
    history = []
    for x, y in map(share, batches()):
        for model in models:
            model.train_on_batch(x, y)
        history.append(weights_of(models[0]) + weights_of(models[1]))
    assert_same(history)
    assert not np.array_equal(*(weights_of(model)[0] for model in models))


def test_a_gradient_tape_of_horovod() -> None:
    """DistributedGradientTape on the variables inside Keras's, with a plain Keras optimizer."""
    model, data, loss = dense_net(), batches(), keras.losses.MeanSquaredError()
    start = start_of_rank_0(model)
    reference_net = dense_net()
    reference_net.set_weights(start)
    reference = train_on_batch(reference_net, sgd(), loss, data, run_eagerly=True)
    hvd.broadcast_variables(model.variables, root_rank=0)
    optimizer = sgd()
    history = []
    for x, y in map(share, data):
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            value = loss(y, model(x, training=True))
        gradients = tape.gradient(value, [v.value for v in model.trainable_variables])
        optimizer.apply(gradients, model.trainable_variables)
        history.append(weights_of(model))
    assert_same(history, reference)
