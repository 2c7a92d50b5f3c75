"""A fast optimizer updates as Keras's does, keeps Keras's states, and is saved as Keras's."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfperf.training import fast_optimizer, optimizers
from tfperf.training.optimizers import is_fast, why_not_fast

K = keras.optimizers

OPTIMIZERS = {
    "Adam": lambda: K.Adam(0.01),
    "Adam with epsilon": lambda: K.Adam(0.01, 0.8, 0.95, epsilon=0.1),
    "AdamW": lambda: K.AdamW(0.01, weight_decay=0.1),
    "SGD": lambda: K.SGD(0.1),
    "momentum": lambda: K.SGD(0.1, momentum=0.9),
    "Nesterov": lambda: K.SGD(0.1, momentum=0.9, nesterov=True),
    "weight decay": lambda: K.SGD(0.1, weight_decay=0.01),
    "clipped": lambda: K.Adam(0.01, clipnorm=0.1),
    "clipped together": lambda: K.SGD(0.1, momentum=0.9, global_clipnorm=0.1),
    "average of weights": lambda: K.Adam(0.01, use_ema=True, ema_momentum=0.5),
    "average written back": lambda: K.Adam(0.01, use_ema=True, ema_overwrite_frequency=3),
    "accumulated": lambda: K.Adam(0.01, gradient_accumulation_steps=2),
    "scheduled": lambda: K.Adam(K.schedules.ExponentialDecay(0.1, 5, 0.5)),
    "loss scale": lambda: K.LossScaleOptimizer(K.Adam(0.01), initial_scale=8.0),
}

COMPILED = {
    "Adadelta": lambda: K.Adadelta(1.0),
    "Adagrad": lambda: K.Adagrad(0.1),
    "Adamax": lambda: K.Adamax(0.01),
    "amsgrad": lambda: K.Adam(0.01, amsgrad=True, weight_decay=0.1),
    "Ftrl": lambda: K.Ftrl(0.1, l1_regularization_strength=0.01),
    "Lion": lambda: K.Lion(0.01, weight_decay=0.1),
    "Nadam": lambda: K.Nadam(0.01, use_ema=True),
    "RMSprop": lambda: K.RMSprop(0.01, clipnorm=0.1),
    "RMSprop with all": lambda: K.RMSprop(0.01, momentum=0.9, centered=True, gradient_accumulation_steps=2),
    "scheduled RMSprop, loss scale": lambda: K.LossScaleOptimizer(
        K.RMSprop(K.schedules.ExponentialDecay(0.1, 5, 0.5)), initial_scale=8.0
    ),
}

UNDER_MIRRORED = [
    "Adam",
    "Nesterov",
    "weight decay",
    "average of weights",
    "clipped together",
    "scheduled",
    "loss scale",
]
"""Keras's own accumulation and write-back of averages fail there."""

WORDS = np.random.default_rng(0).integers(0, 12, size=(24, 3))
LABELS = np.random.default_rng(1).normal(size=(24, 2)).astype("float32")


def dense():
    return [keras.layers.Rescaling(0.5), keras.layers.Dense(8, "relu"), keras.layers.Dense(2)]


def with_embedding():
    """The gradient of the embedding is sparse, those of the others dense.

    Words are several times in a batch, no batch has all of them, and none the last.
    """
    return [keras.layers.Embedding(13, 4), keras.layers.Flatten(), keras.layers.Dense(2)]


def trained(make, layers, strategy, fast, policy="float32"):
    """Weights and states after 9 steps."""
    keras.utils.set_random_seed(0)
    with strategy.scope():
        keras.config.set_dtype_policy(policy)
        try:
            net = keras.Sequential([keras.Input((3,)), *layers()])
        finally:
            keras.config.set_dtype_policy("float32")
        optimizer = fast_optimizer(make()) if fast else make()
        net.compile(optimizer, "mse")
    before = net.get_weights()
    net.fit(WORDS, LABELS, batch_size=8, epochs=3, shuffle=False, verbose=0)
    assert any(np.abs(one - other).max() > 1e-4 for one, other in zip(before, net.get_weights(), strict=True))
    names = [(re.split("[/_]", re.sub(r"_\d+$", "", one.path))[-1], one.shape) for one in optimizer.variables]
    return names, [np.asarray(one) for one in [*net.get_weights(), *(v.numpy() for v in optimizer.variables)]]


def check_equal(make, layers, strategy, **options):
    (names, plain), (fast_names, fast) = (trained(make, layers, strategy, fast, **options) for fast in (False, True))
    assert fast_names == names
    for one, other in zip(plain, fast, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_it_trains_as_keras_s(name):
    check_equal(OPTIMIZERS[name], with_embedding, tf.distribute.get_strategy())


@pytest.fixture
def few_are_enough(monkeypatch):
    monkeypatch.setattr(optimizers, "MANY_NUMBERS", 1)


@pytest.mark.parametrize("name", COMPILED)
def test_a_program_of_all_updates_trains_as_keras_s(name, few_are_enough):
    check_equal(COMPILED[name], dense, tf.distribute.get_strategy())


@pytest.mark.parametrize("name", ["Lion", "Nadam"])
def test_sparse_gradients_are_left_to_keras(name, few_are_enough):
    check_equal(COMPILED[name], with_embedding, tf.distribute.get_strategy())


def test_a_program_of_all_updates_is_compiled_once(few_are_enough):
    """It is called step by step from Python too."""
    weights = [keras.Variable(np.ones(shape, "float32")) for shape in ([3, 4], [4])]
    plain, fast = (K.RMSprop(0.1) for _ in range(2))
    programs = vars(fast_optimizer(fast)).setdefault("_programs", {})
    found = []
    for optimizer in (plain, fast):
        for weight in weights:
            weight.assign(np.ones(weight.shape, "float32"))
        for step in range(3):
            optimizer.apply([tf.fill(weight.shape, 0.1 * step) for weight in weights], weights)
        found.append([weight.numpy() for weight in weights])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-6)
    (program,) = programs.values()
    assert program.experimental_get_tracing_count() == 1


@pytest.mark.parametrize("kind", [K.RMSprop, K.Nadam])
def test_few_numbers_are_updated_by_keras(kind, monkeypatch):
    monkeypatch.setattr(optimizers._Compiled, "_program", None)  # nobody can call it
    check_equal(lambda: kind(0.01), dense, tf.distribute.get_strategy())


@pytest.mark.parametrize("kind", [K.RMSprop, K.Nadam])
def test_under_a_strategy_keras_updates(kind, few_are_enough, monkeypatch):
    monkeypatch.setattr(optimizers._Compiled, "_program", None)
    check_equal(lambda: kind(0.01), dense, tf.distribute.MirroredStrategy(["CPU:0"]))


@pytest.mark.parametrize("name", UNDER_MIRRORED)
def test_it_trains_as_keras_s_under_a_strategy(name):
    check_equal(OPTIMIZERS[name], dense, tf.distribute.MirroredStrategy(["CPU:0"]))


def test_it_trains_as_keras_s_under_a_mixed_policy():
    check_equal(OPTIMIZERS["Adam"], dense, tf.distribute.get_strategy(), policy="mixed_bfloat16")


def test_each_variable_is_updated_by_one_operation():
    optimizer, weights = fast_optimizer("adam"), [keras.Variable(np.ones([3, 2])), keras.Variable(np.ones([2]))]
    optimizer.build(weights)
    gradients = [tf.ones([3, 2]), tf.ones([2])]
    graph = tf.function(lambda: optimizer.apply(gradients, weights)).get_concrete_function().graph
    names = [one.type for one in graph.get_operations()]
    assert names.count("ResourceApplyAdam") == 2
    assert not {"Sqrt", "AssignSubVariableOp"} & set(names)


@pytest.mark.parametrize(
    ("make", "operations"),
    [
        (keras.optimizers.Adam, ["ResourceScatterAdd", "ResourceApplyAdam"]),
        (lambda: keras.optimizers.SGD(0.1, 0.9), ["ResourceApplyKerasMomentum"]),
        (keras.optimizers.SGD, ["ResourceScatterSub"]),
        (lambda: keras.optimizers.Adam(beta_1=0.0), []),
    ],
)
def test_a_sparse_gradient_is_dense_where_all_rows_move(make, operations):
    optimizer, weight = fast_optimizer(make()), keras.Variable(np.ones([3, 2]))
    optimizer.build([weight])
    sparse = tf.IndexedSlices(tf.ones([4, 2]), tf.constant([0, 2, 2, 0]), tf.constant([3, 2]))
    graph = tf.function(lambda: optimizer.apply([sparse], [weight])).get_concrete_function().graph
    named = [one.type for one in graph.get_operations()]
    assert [name for name in named if name.startswith(("ResourceApply", "ResourceScatter"))] == operations


def test_a_word_that_a_batch_has_a_thousand_times_is_keras_s():
    """Rounding is that of a sum of a thousand: no large numbers cancel."""
    found = []
    for make in (keras.optimizers.Adam, lambda: fast_optimizer(keras.optimizers.Adam())):
        optimizer, weight = make(), keras.Variable(np.ones([3, 2]), dtype="float32")
        optimizer.build([weight])
        values = tf.constant(np.random.default_rng(0).normal(1, 0.1, size=[1000, 2]), tf.float32)
        for _ in range(3):
            optimizer.apply([tf.IndexedSlices(values, tf.ones([1000], tf.int32), tf.constant([3, 2]))], [weight])
        found.append([np.asarray(one) for one in [weight, *optimizer.variables]])
    for keras_s, ours in zip(*found, strict=True):
        np.testing.assert_allclose(ours, keras_s, rtol=1e-4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_weights_in_half_precision_are_updated_by_keras(dtype):
    optimizer, weight = fast_optimizer("adam"), keras.Variable(np.ones([3, 2]), dtype=dtype)
    optimizer.build([weight])
    graph = tf.function(lambda: optimizer.apply([tf.ones([3, 2], dtype)], [weight])).get_concrete_function().graph
    names = [one.type for one in graph.get_operations()]
    assert ("ResourceApplyAdam" in names) == (dtype in ("float32", "float64"))


@pytest.mark.parametrize("make", [K.Adam, lambda: K.LossScaleOptimizer(K.SGD(0.1))])
def test_what_is_fast_is_known_and_not_refused(make):
    optimizer = make()
    assert (is_fast(optimizer), why_not_fast(optimizer)) == (False, None)
    fast_optimizer(optimizer)
    assert (is_fast(optimizer), why_not_fast(optimizer)) == (True, None)


@pytest.mark.parametrize("name", ["AdamW", "Nesterov", "loss scale"])
def test_it_is_saved_as_keras_s_and_trains_on(name, tmp_path):
    net = keras.Sequential([keras.Input((3,)), *dense()])
    net.compile(fast_optimizer(OPTIMIZERS[name]()), "mse")
    net.fit(WORDS, LABELS, verbose=0)
    net.save(tmp_path / "net.keras")
    loaded = keras.saving.load_model(tmp_path / "net.keras")
    plain = OPTIMIZERS[name]()
    assert type(loaded.optimizer) is type(plain)
    assert type(getattr(loaded.optimizer, "inner_optimizer", None)) is type(getattr(plain, "inner_optimizer", None))
    for one in (net, loaded):
        one.fit(WORDS, LABELS, shuffle=False, verbose=0)
    for one, other in zip(net.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-6)


def test_twice_is_once_and_the_same_object():
    optimizer = K.Adam()
    assert fast_optimizer(fast_optimizer(optimizer)) is optimizer
    assert [kind.__name__ for kind in type(optimizer).__mro__].count("_FastAdam") == 1


@pytest.mark.parametrize("optimizer", [K.Adafactor(), K.Lamb(), K.Muon()])
def test_another_kind_is_refused_in_one_line(optimizer):
    with pytest.raises(
        ValueError, match=rf"^expected one of Keras's optimizers Adadelta, [^\n]*{type(optimizer).__name__}"
    ):
        fast_optimizer(optimizer)
