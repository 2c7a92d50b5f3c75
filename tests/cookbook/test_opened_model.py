"""The net that a recipe experiments on: opened, fed, and trained with no more examples than there is memory for."""

import numpy as np
import pytest
import tensorflow as tf

from tfperf.cookbook import opened_model
from tfperf.cookbook.opened_model import open_for_recipe
from tfperf.errors import TfperfError

NETS = """
import keras
import numpy as np

def wide():
    layers = [keras.layers.Dense(2**20, activation="relu"), keras.layers.Dense(1)]
    return keras.Sequential([keras.Input([1]), *layers])

class Two(keras.Model):
    def __init__(self):
        super().__init__()
        self.both = keras.layers.Concatenate()
        self.last = keras.layers.Dense(2)

    def call(self, left, right):
        return self.last(self.both([left, right]))

def two():
    return Two(), [np.ones((1, 3), "float32"), np.ones((1, 4), "float32")]
"""


@pytest.fixture
def opened(tmp_path):
    """A function that opens a net of the file above, and what it said."""
    (tmp_path / "nets.py").write_text(NETS)
    said = []

    def opened(name, batch=1):
        return open_for_recipe(f"{tmp_path}/nets.py:{name}", None, batch, 0, own="mlp", say=said.append), said

    return opened


def test_a_subclass_of_two_inputs_is_called_by_position(opened):
    net, _ = opened("two", batch=5)
    assert net.is_yours
    assert net.words.startswith("your net (")
    assert [argument.shape.as_list() for argument in net.args] == [[5, 3], [5, 4]]
    assert net.net(*net.args).shape == (5, 2)
    copy = net.copy("mixed_bfloat16")
    np.testing.assert_allclose(copy(*net.args), net.net(*net.args), rtol=0.05, atol=0.05)


def test_all_examples_are_taken_where_there_is_memory(opened):
    net, said = opened("two")
    inputs, labels, loss_of = net.training_batch(None, 64)
    assert len(labels) == len(inputs[0]) == 64
    assert loss_of(labels, net.net(*inputs)).shape == ()
    assert said == []


def test_fewer_are_taken_where_there_is_not(opened, monkeypatch):
    net, said = opened("wide")  # an example has 4 MiB of activations, and their gradients
    monkeypatch.setattr(opened_model, "available_memory", lambda: 512 * 2**20)
    inputs, labels, _ = net.training_batch(None, 4096)
    size = len(labels)
    assert size == len(inputs[0])
    assert 1 <= size < 4096
    assert size.bit_count() == 1  # a power of 2
    (sentence,) = said
    assert "A training step of 4096 examples of your net" in sentence
    assert sentence.endswith(f"so {size} are taken; --batch takes fewer.")


def test_a_net_of_which_no_example_fits_is_refused(opened, monkeypatch):
    net, _ = opened("wide")
    monkeypatch.setattr(opened_model, "available_memory", lambda: 2**20)
    with pytest.raises(TfperfError, match="expected a net that this machine has memory to train"):
        net.training_batch(None, 4096)


def test_the_recipes_own_net_takes_what_the_recipe_says(monkeypatch):
    monkeypatch.setattr(opened_model, "available_memory", lambda: 2**20)
    net = open_for_recipe("mlp", None, 1, 0, own="mlp")
    assert not net.is_yours
    assert len(net.training_batch(None, 32)[1]) == 32
    assert tf.reduce_all(tf.math.is_finite(net.net(*net.args)))
