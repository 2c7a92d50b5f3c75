"""A built model in half precision."""

import functools

import keras
import numpy as np
import pytest

from tfperf.training import use_mixed_precision


def small(softmax=False):
    """A functional net with a normalization, and a softmax by itself if asked for."""
    inputs = keras.Input((8,))
    x = keras.layers.Dense(16, "relu", name="hidden")(inputs)
    x = keras.layers.BatchNormalization(name="norm")(x)
    x = keras.layers.Dense(3, name="logits")(x)
    return keras.Model(inputs, keras.layers.Softmax(name="softmax")(x) if softmax else x)


@pytest.mark.parametrize("softmax", [False, True])
def test_hidden_layers_compute_in_half_and_what_gives_the_outputs_does_not(softmax):
    net = use_mixed_precision(small(softmax))
    types = {layer.name: layer.compute_dtype for layer in net.layers[1:]}
    assert {types.pop(name) for name in ("hidden", "norm")} == {"bfloat16"}
    assert set(types.values()) == {"float32"}
    assert {weight.dtype for weight in net.weights} == {"float32"}
    assert net(np.ones([2, 8], "float32")).dtype == "float32"


def test_it_computes_as_a_net_that_was_built_so(tmp_path):
    net, x = small(), np.random.default_rng(0).standard_normal((4, 8)).astype("float32")
    exact = np.asarray(net(x))
    use_mixed_precision(net)
    net.save(tmp_path / "net.keras")
    loaded = keras.saving.load_model(tmp_path / "net.keras")
    np.testing.assert_array_equal(net(x), loaded(x))
    assert 0 < np.abs(np.asarray(net(x)) - exact).max() < 0.05
    assert loaded.get_layer("hidden").dtype_policy.name == "mixed_bfloat16"


def test_nets_within_nets_and_layers_of_another_policy():
    inner = keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(4, name="first"), keras.layers.Dense(4, name="last")]
    )
    exact = keras.layers.Dense(4, dtype="float64", name="exact")
    use_mixed_precision(keras.Sequential([keras.Input((8,)), exact, keras.layers.Dense(8), inner]))
    assert exact.compute_dtype == "float64"
    assert inner.get_layer("first").compute_dtype == "bfloat16"
    assert inner.get_layer("last").compute_dtype == "float32"


def test_a_compiled_model_trains_on():
    net, generator = small(), np.random.default_rng(0)
    x, y = generator.standard_normal((64, 8)).astype("float32"), generator.integers(0, 3, 64)
    net.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    net.fit(x, y, verbose=0)
    before = net.get_layer("hidden").kernel.numpy()
    use_mixed_precision(net).fit(x, y, verbose=0)
    assert net.get_layer("hidden").kernel.dtype == "float32"
    assert (net.get_layer("hidden").kernel.numpy() != before).any()


@pytest.mark.parametrize("policy", ["float32", "bfloat16", "mixed_float8"])
def test_other_policies_are_refused(policy):
    with pytest.raises(ValueError, match=r"mixed_bfloat16|policy"):
        use_mixed_precision(small(), policy)


def test_a_model_that_is_not_built_is_refused():
    with pytest.raises(ValueError, match="expected a built model"):
        use_mixed_precision(keras.Sequential([keras.layers.Dense(3)]))


@pytest.mark.parametrize(
    "last",
    [
        lambda x: keras.layers.TimeDistributed(keras.layers.Dense(3))(x),
        lambda x: keras.layers.MultiHeadAttention(2, 4)(x, x),
        lambda x: keras.layers.Bidirectional(keras.layers.SimpleRNN(3))(x),
    ],
)
def test_layers_within_what_gives_the_outputs_are_exact_too(last):
    inputs = keras.Input((5, 8))
    hidden = keras.layers.TimeDistributed(keras.layers.Dense(8, name="within"), name="hidden")(inputs)
    net = use_mixed_precision(keras.Model(inputs, last(hidden)))
    assert {one.compute_dtype for one in net.layers[1]._flatten_layers()} == {"bfloat16"}
    assert {one.compute_dtype for one in net.layers[-1]._flatten_layers()} == {"float32"}
    assert net(np.ones([2, 5, 8], "float32")).dtype == "float32"


@pytest.mark.parametrize("depth", [1, 2])
def test_the_layer_before_a_net_of_activations_alone_is_exact(depth):
    inputs = keras.Input((3,))
    tail = keras.Model(inputs, keras.layers.Softmax()(inputs))
    for _ in range(depth - 1):
        tail = keras.Sequential([keras.Input((3,)), keras.layers.Activation("relu"), tail])
    inputs = keras.Input((8,))
    hidden = keras.layers.Dense(16, "relu", name="hidden")(inputs)
    net = use_mixed_precision(keras.Model(inputs, tail(keras.layers.Dense(3, name="logits")(hidden))))
    assert net.get_layer("hidden").compute_dtype == "bfloat16"
    assert net.get_layer("logits").compute_dtype == "float32"


@pytest.mark.parametrize(
    "last",
    [
        lambda x: x / 2.0,
        keras.ops.softmax,
        lambda x: keras.ops.softmax(keras.layers.Reshape((3, 1))(x * 2.0), axis=1),
        lambda x: x + keras.ops.mean(x, axis=-1, keepdims=True),
        lambda x: functools.reduce(lambda y, _: y + y, range(40), x),
    ],
)
def test_what_operations_that_are_no_layers_give_outputs_of_is_exact(last):
    inputs = keras.Input((8,))
    hidden = keras.layers.Dense(16, "relu", name="hidden")(inputs)
    net = keras.Model(inputs, last(keras.layers.Dense(3, name="logits")(hidden)))
    exact = np.asarray(net(np.ones([2, 8], "float32")))
    use_mixed_precision(net)
    assert net.get_layer("hidden").compute_dtype == "bfloat16"
    assert net.get_layer("logits").compute_dtype == "float32"
    assert net(np.ones([2, 8], "float32")).dtype == "float32"
    np.testing.assert_allclose(net(np.ones([2, 8], "float32")), exact, rtol=0.1, atol=0.1 * np.abs(exact).max())
