"""Small nets of every form, as servables, one cache of conversions for all of a run, and engines planted for tests."""

import contextlib
import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from tfperf.engines import Plan
from tfperf.engines.catalog import known_engines
from tfperf.engines.child import Child
from tfperf.engines.folders import PROOF
from tfperf.engines.process import EngineProcess, Origin, store_arrays
from tfperf.exports.signature import Signature, TensorForm
from tfperf.processes import keeper


def cnn():
    """Convolutions, normalisation and a dense layer."""
    import keras

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
    import keras

    ids, floats = keras.Input((7,), dtype="int32", name="ids"), keras.Input((2,), name="floats")
    pooled = keras.layers.GlobalAveragePooling1D(name="m")(keras.layers.Embedding(20, 4, name="z")(ids))
    both = keras.layers.Concatenate(name="b")([pooled, floats])
    outputs = {"zeta": keras.layers.Dense(3, name="a")(both), "alpha": keras.layers.Dense(3, name="y")(both)}
    return keras.Model({"ids": ids, "floats": floats}, outputs, name="two")


def lists():
    """Inputs and outputs in lists, of one form, named by layers against the order of the alphabet."""
    import keras

    first, second = keras.Input((3,), name="first"), keras.Input((3,), name="second")
    apart = keras.layers.Dense(3, name="one")(second) + first
    double = keras.layers.Rescaling(2.0, name="multiply")(apart)
    return keras.Model([second, first], [keras.layers.ReLU(name="two")(apart), double], name="lists")


def subclass():
    """Takes a dictionary, and gives a tuple."""
    import keras

    class Subclass(keras.Model):
        def __init__(self):
            super().__init__(name="subclass")
            self.second, self.first = keras.layers.Dense(4, name="second"), keras.layers.Dense(4, name="first")

        def call(self, inputs):
            hidden = keras.ops.relu(self.first(inputs["right"]))
            return self.second(hidden) + inputs["left"], hidden

    net = Subclass()
    net({"left": np.ones((2, 4), "float32"), "right": np.ones((2, 6), "float32")})
    return net


def mixed():
    """A net whose own policy is half precision."""
    import keras

    policy = keras.dtype_policies.DTypePolicy("mixed_bfloat16")
    hidden = [keras.layers.Dense(64, activation="relu", dtype=policy) for _ in range(2)]
    return keras.Sequential([keras.Input((8,)), *hidden, keras.layers.Dense(4, dtype=policy)], name="mixed")


def signs():
    """Gives whole numbers beside the logits."""
    import keras

    features = keras.Input((6,), name="features")
    outputs = {"signs": keras.ops.cast(features > 0, "int32"), "logits": keras.layers.Dense(5, name="dense")(features)}
    return keras.Model(features, outputs, name="signs")


def shift():
    """Adds numbers that are no weights; TensorFlow takes so many of them for another input of its function."""
    import keras
    import tensorflow as tf

    class Shift(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.by = tf.constant(np.linspace(0, 1, 300, dtype="float32"))

        def call(self, x):
            return x + self.by

    return keras.Sequential([keras.Input((300,)), Shift(), keras.layers.Dense(4)], name="shift")


def recurrent():
    """Loops over time."""
    import keras

    hidden = [keras.layers.LSTM(8, return_sequences=True), keras.layers.GRU(6)]
    return keras.Sequential([keras.Input((5, 3), name="series"), *hidden, keras.layers.Dense(4)], name="recurrent")


BUILDERS = {build.__name__: build for build in (cnn, two, lists, subclass, mixed, signs, shift, recurrent)}


@pytest.fixture(scope="session")
def servable_of():
    """A function from the name of a net above to its servable; each is built once."""
    import keras

    from tfperf.exports.servable import Servable

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


PLANTED = str(Path(__file__).parents[1] / "planted")

DENSE = """
import keras

def build():
    keras.utils.set_random_seed(3)
    hidden = keras.layers.Dense(16, activation="relu", bias_initializer="normal")
    return keras.Sequential([keras.Input((8,), name="x"), hidden, keras.layers.Dense(4, name="y")], name="dense")
"""


@contextlib.contextmanager
def planted_installed():
    """Have the planted engines installed, here and in processes that are started."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [PLANTED, *sys.path])
        patch.setenv("PYTHONPATH", PLANTED, prepend=os.pathsep)
        known_engines.cache_clear()
        try:
            yield patch
        finally:
            known_engines.cache_clear()
            sys.modules.pop("planted", None)


class Planted:
    """The planted engines, while they are installed, and one net for them that was converted by hand."""

    batch = 4

    def __init__(self, patch, place):
        self.patch, self.place = patch, place
        self.pids, self.temporary, self.folder = place / "pids", place / "temporary", place / "dense"
        self.temporary.mkdir()
        self.set(pids=self.pids, seconds=0.0002)
        patch.setenv("TMPDIR", str(self.temporary))
        self.signature = Signature(
            inputs=(TensorForm(name="x", shape=(None, 3), dtype="float32"),),
            outputs=(TensorForm(name="y", shape=(None, 2), dtype="float32"),),
        )
        kernel, bias = np.linspace(-1, 1, 6, dtype="float32").reshape(3, 2), np.ones(2, "float32")
        self.folder.mkdir()
        np.savez(self.folder / "weights.npz", kernel, bias)
        (self.folder / "activations.json").write_text('["linear"]')
        (self.folder / PROOF).write_text(json.dumps({"precision": "2 of 2 arrays in float32"}))
        rows = self.signature.random_inputs(2 * self.batch)
        self.inputs = store_arrays(place / "inputs.npz", rows)
        self.reference = store_arrays(place / "reference.npz", [rows[0] @ kernel + bias])

    def set(self, **settings):
        """Settings of planted.py, for processes that are started from now on."""
        for name, value in settings.items():
            self.patch.setenv(f"PLANTED_{name.upper()}", str(value))

    def process(self, engine, **limits):
        return EngineProcess(Plan(engine=engine), Child(**{"deadline": 60.0} | limits))

    def load(self, process):
        return process.load(self.folder, self.signature)

    def check(self, process):
        return process.check(self.batch, self.inputs, self.reference)

    def started(self):
        """The processes that engines told of."""
        told = self.pids.read_text().split() if self.pids.exists() else []
        return [psutil.Process(int(pid)) for pid in told if psutil.pid_exists(int(pid))]

    def left(self):
        """Every process of this test that runs: by what it inherited, and by its number."""
        found = set(self.started())
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.environ().get("PLANTED_PIDS") == str(self.pids) and process.pid != os.getpid():
                    found.add(process)
        return [process for process in found if runs(process)]

    def running(self):
        """Those of them that are no keepers."""
        return [process for process in self.left() if keeper.__file__ not in process.cmdline()]

    def nothing_left(self):
        """Whether all of them end within seconds, and what they wrote to the disk is next to nothing."""
        return gone(self.left) and sum(file.stat().st_size for file in self.temporary.rglob("*")) < 2**20


@pytest.fixture
def planted(tmp_path):
    """The planted engines; see `Planted`. Whatever they started is ended."""
    place = tmp_path / "planted"
    place.mkdir()
    with planted_installed() as patch:
        found = Planted(patch, place)
        yield found
        for process in found.left():
            process.kill()


@pytest.fixture(scope="session")
def dense(tmp_path_factory):
    """A net that processes can open, with what is converted for planted engines: (servable, origin, cache)."""
    from tfperf.engines.conversions import Conversions
    from tfperf.exports.opening import open_model

    place = tmp_path_factory.mktemp("dense")
    (place / "dense.py").write_text(DENSE)
    origin = Origin(f"{place / 'dense.py'}:build")
    servable = open_model(origin.model)
    with planted_installed():
        Conversions(servable, place / "cache").folder(Plan(engine="honest"))
    return servable, origin, place / "cache"


def runs(process):
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def gone(processes):
    """Whether all of them end within seconds; nobody waits here for those whose parent has ended."""
    return within_seconds(lambda: not any(map(runs, processes() if callable(processes) else processes)))


def within_seconds(true):
    """Whether something becomes true."""
    until = time.monotonic() + 20
    while not true():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture(name="within_seconds")
def _within_seconds():
    return within_seconds
