"""Small random nets: what hypothesis draws of them, and how they are built."""

import keras
import numpy as np
import pytest
from hypothesis import strategies as st

WIDTH = 6

ACTIVATIONS = st.sampled_from(["relu", "tanh", "softmax"])
BACK = st.integers(1, 3)
"""How many tensors back a layer finds its input; more than 1 is a skip."""

LAYERS = st.one_of(
    st.tuples(st.just("dense"), BACK, st.integers(3, 8), ACTIVATIONS),
    st.tuples(st.just("add"), BACK),
    st.tuples(st.just("concatenate"), BACK, BACK),
    st.tuples(st.just("norm"), BACK),
)
PLANS = st.tuples(st.integers(1, 2), st.lists(LAYERS, min_size=2, max_size=6))
"""The number of inputs, and the layers."""


def dense(units, activation=None):
    return keras.layers.Dense(units, activation, bias_initializer="normal")  # a bias of 0 would hide that it is lost


def build(plan):
    """The functional net of a plan; every input is needed at the end too, which is the longest skip."""
    number, layers = plan
    keras.utils.set_random_seed(0)
    inputs = [keras.Input([WIDTH]) for _ in range(number)]
    tensors = list(inputs)
    for kind, back, *rest in layers:
        tensor = tensors[-min(back, len(tensors))]
        match kind:
            case "dense":
                tensors.append(dense(*rest)(tensor))
            case "add":
                tensors.append(tensor + dense(tensor.shape[-1])(tensor))
            case "concatenate":
                tensors.append(keras.layers.Concatenate()([tensor, tensors[-min(rest[0], len(tensors))]]))
            case "norm":
                tensors.append(keras.layers.LayerNormalization()(tensor))
    joined = keras.layers.Concatenate()([tensors[-1], *inputs])
    return keras.Model(inputs if number > 1 else inputs[0], dense(2)(dense(4)(joined)))


def examples(net, number=4):
    """Random inputs of a net, in its own structure."""
    generator = np.random.default_rng(0)
    arrays = [generator.standard_normal([number, *tensor.shape[1:]]).astype(np.float32) for tensor in net.inputs]
    return arrays if len(arrays) > 1 else arrays[0]


@pytest.fixture(scope="session")
def random_nets():
    """What the tests of this folder share: the plans to draw from, build(plan), and examples(net)."""
    return PLANS, build, examples
