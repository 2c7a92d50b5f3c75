"""Numbers that a net holds beside its weights."""

import keras
import numpy as np
import pytest

from tfperf.engines import Plan
from tfperf.exports import Servable
from tfperf.exports.keras_nets import faster_layers, in_keras_form, own_constants, restoring
from tfperf.training import FusedBatchNormalization
from tfperf.trials import Origin, compare_engines


@pytest.fixture
def positions():
    """A functional net that calls an embedding on an array, as for the positions of a transformer."""
    tokens = keras.Input([8], dtype="int32")
    words = keras.layers.Embedding(10, 4)(tokens)
    places = keras.layers.Embedding(8, 4, embeddings_initializer="normal")(keras.ops.arange(8))
    return keras.Model(tokens, keras.layers.Dense(2)(keras.layers.Flatten()(words + places)))


def test_what_is_called_on_an_array_is_named(positions):
    (name,) = own_constants(positions)
    assert name.startswith("add")


def test_a_net_inside_a_net_is_looked_into(positions):
    tokens = keras.Input([8], dtype="int32")
    assert own_constants(keras.Model(tokens, keras.layers.Dense(1)(positions(tokens))))


def test_weights_scalars_and_graphs_are_none():
    x = keras.Input([4])
    assert own_constants(keras.Model(x, keras.layers.Dense(2)(x * 0.5 + 1.0))) == []
    assert own_constants(None) == []


@pytest.mark.timeout(200)
def test_engines_answer_as_the_net_with_its_constants(positions, tmp_path):
    servable = Servable.from_net(positions)
    file = tmp_path / "my.py"
    file.write_text("raise SystemExit('the code must not run again')")
    inputs = [np.arange(32, dtype=np.int32).reshape(4, 8) % 10]
    plans = {2: [Plan(engine=name) for name in ("eager", "graph", "frozen")]}
    (found,) = compare_engines(
        servable, Origin(f"{file}:build"), plans, {2: inputs}, time_limit=1.0, cache=tmp_path / "cache"
    )
    assert [row.status for row in found.trials] == ["ran"] * 3


def test_variables_are_restored_after_an_error_too():
    net = keras.Sequential([keras.Input((3,)), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)])
    before = [variable.numpy() for variable in net.variables]
    assert len(before) == 5  # two weights, two statistics, a seed

    def train():
        net(np.random.default_rng(0).normal(size=(4, 3)).astype("float32"), training=True)
        net.variables[0].assign(np.zeros(3))
        assert all((net.variables[place].numpy() != before[place]).any() for place in (0, 2, 3, 4))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), restoring(net):
        train()
    for variable, value in zip(net.variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


def test_classes_are_restored_after_an_error_too():
    net = keras.Sequential([keras.Input((3,)), FusedBatchNormalization(), keras.layers.Dense(2)])
    own = [type(layer) for layer in net.layers]
    with pytest.raises(ZeroDivisionError, match=r"keras\.src.*BatchNormalization.*Dense"), in_keras_form(net):
        raise ZeroDivisionError(*[type(layer) for layer in net.layers])
    assert [type(layer) for layer in net.layers] == own
    assert faster_layers(net) == [net.layers[0]]
