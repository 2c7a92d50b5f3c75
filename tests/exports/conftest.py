"""Nets of every form that Keras has."""

import keras
import numpy as np
import pytest


class Pair(keras.Model):
    """A subclass that takes a dictionary of ids and floats, and gives a tuple."""

    def __init__(self):
        super().__init__(name="pair")
        self.embed = keras.layers.Embedding(20, 4)
        self.pool = keras.layers.GlobalAveragePooling1D()
        self.dense = keras.layers.Dense(3)

    def call(self, inputs):
        pooled = self.pool(self.embed(inputs["ids"]))
        return self.dense(keras.ops.concatenate([pooled, inputs["floats"]], axis=1)), pooled


def sequential():
    return keras.Sequential([keras.Input((5,), name="features"), keras.layers.Dense(4, name="logits")], name="small")


def functional():
    ids, floats = keras.Input((7,), dtype="int32", name="ids"), keras.Input((2,), name="floats")
    pooled = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(20, 4)(ids))
    both = keras.layers.Concatenate()([pooled, floats])
    outputs = {"logits": keras.layers.Dense(3)(both), "pooled": pooled}
    return keras.Model({"ids": ids, "floats": floats}, outputs, name="two_inputs")


def as_lists():
    first, second = keras.Input((3,), name="first"), keras.Input((3,), name="second")
    total = keras.layers.Add(name="total")([first, second])
    return keras.Model([second, first], [total, keras.layers.Dense(2, name="dense")(total)], name="as_lists")


def half():
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        layers = [keras.layers.Dense(64, activation="relu"), keras.layers.BatchNormalization(), keras.layers.Dense(4)]
        return keras.Sequential([keras.Input((5,)), *layers], name="half")
    finally:
        keras.config.set_dtype_policy("float32")


def pair_example(batch=2):
    return {"ids": np.ones((batch, 7), "int32"), "floats": np.ones((batch, 2), "float32")}


@pytest.fixture(scope="session")
def small():
    return sequential()


@pytest.fixture(scope="session", params=[sequential, functional, as_lists, half], ids=lambda build: build.__name__)
def net(request):
    return request.param()


@pytest.fixture
def pair():
    return Pair(), pair_example()
