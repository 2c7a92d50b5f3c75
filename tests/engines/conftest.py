"""Small nets of every form, as servables, and one cache of conversions for all of a run."""

import sys
import textwrap

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfperf.exports.servable import Servable


def cnn():
    """Convolutions, normalisation and a dense layer."""
    return keras.Sequential(
        [
            keras.Input((12, 12, 3), name="images"),
            keras.layers.Conv2D(24, 3, use_bias=False),
            keras.layers.BatchNormalization(beta_initializer="ones", moving_mean_initializer="ones"),
            keras.layers.ReLU(),
            keras.layers.DepthwiseConv2D(3, padding="same"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(64, activation="relu"),  # LiteRT leaves weights of less than 1,024 numbers as they are
            keras.layers.Dense(10, name="logits"),
        ],
        name="cnn",
    )


def two():
    """Two inputs of two types and two outputs of one form, neither in the order of the alphabet anywhere."""
    ids, floats = keras.Input((7,), dtype="int32", name="ids"), keras.Input((2,), name="floats")
    pooled = keras.layers.GlobalAveragePooling1D(name="m")(keras.layers.Embedding(20, 4, name="z")(ids))
    both = keras.layers.Concatenate(name="b")([pooled, floats])
    outputs = {"zeta": keras.layers.Dense(3, name="a")(both), "alpha": keras.layers.Dense(3, name="y")(both)}
    return keras.Model({"ids": ids, "floats": floats}, outputs, name="two")


def lists():
    """Inputs and outputs in lists, of one form, named by layers against the order of the alphabet."""
    first, second = keras.Input((3,), name="first"), keras.Input((3,), name="second")
    apart = keras.layers.Dense(3, name="one")(second) + first
    return keras.Model([second, first], [keras.layers.ReLU(name="two")(apart), apart * 2], name="lists")


class Subclass(keras.Model):
    """Takes a dictionary, and gives a tuple."""

    def __init__(self):
        super().__init__(name="subclass")
        self.second, self.first = keras.layers.Dense(4, name="second"), keras.layers.Dense(4, name="first")

    def call(self, inputs):
        hidden = keras.ops.relu(self.first(inputs["right"]))
        return self.second(hidden) + inputs["left"], hidden


def subclass():
    net = Subclass()
    net({"left": np.ones((2, 4), "float32"), "right": np.ones((2, 6), "float32")})
    return net


def mixed():
    """A net whose own policy is half precision."""
    policy = keras.dtype_policies.DTypePolicy("mixed_bfloat16")
    hidden = [keras.layers.Dense(64, activation="relu", dtype=policy) for _ in range(2)]
    return keras.Sequential([keras.Input((8,)), *hidden, keras.layers.Dense(4, dtype=policy)], name="mixed")


def signs():
    """Gives whole numbers beside the logits."""
    features = keras.Input((6,), name="features")
    outputs = {"signs": keras.ops.cast(features > 0, "int32"), "logits": keras.layers.Dense(5, name="dense")(features)}
    return keras.Model(features, outputs, name="signs")


class Shift(keras.layers.Layer):
    """Adds numbers that are no weights; TensorFlow takes so many of them for another input of its function."""

    def __init__(self):
        super().__init__()
        self.by = tf.constant(np.linspace(0, 1, 300, dtype="float32"))

    def call(self, x):
        return x + self.by


def shift():
    return keras.Sequential([keras.Input((300,)), Shift(), keras.layers.Dense(4)], name="shift")


BUILDERS = {build.__name__: build for build in (cnn, two, lists, subclass, mixed, signs, shift)}


@pytest.fixture(scope="session")
def servable_of():
    """A function from the name of a net above to its servable; each is built once."""
    made = {}

    def servable_of(name):
        if name not in made:
            keras.utils.set_random_seed(7)
            example = {"left": np.ones((2, 4), "float32"), "right": np.ones((2, 6), "float32")}
            net = BUILDERS[name]()
            made[name] = Servable.from_net(net, example if name == "subclass" else None)
        return made[name]

    return servable_of


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    """Folder of the conversions of all tests in this process."""
    return tmp_path_factory.mktemp("conversions")


PLANTED = """
import os, signal, subprocess, sys, time
from tfperf.engines import litert, worker
genuine = litert.load
def load(folder, signature, plan, proof):
    runner = genuine(folder, signature, plan, proof)
    run, count = runner.run, iter(range(10**9))
{code}
    return runner
litert.load = load
worker.main()
"""


@pytest.fixture
def planted(monkeypatch, tmp_path):
    """A function from code that may change the `runner` of LiteRT to processes in which it has changed it."""

    def planted(code):
        program, python = tmp_path / "planted.py", tmp_path / "python"
        program.write_text(PLANTED.format(code=textwrap.indent(textwrap.dedent(code), "    ")))
        python.write_text(f"#!/bin/sh\nexec {sys.executable} -P {program}\n")
        python.chmod(0o755)
        monkeypatch.setattr("tfperf.engines.process.sys.executable", str(python))

    return planted
