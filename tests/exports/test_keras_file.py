"""A .keras file that claims more than it holds is refused before memory is taken for it."""

import json
import resource
import zipfile

import keras
import numpy as np
import pytest

from tfperf.errors import ExportError
from tfperf.exports.keras_file import read_keras_file

# Goes with the first TensorFlow whose EagerTensor.__array__ takes `copy`.
pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"
)


@pytest.fixture
def saved(tmp_path):
    net = keras.Sequential([keras.Input((784,)), keras.layers.Dense(64), keras.layers.Dense(10)])
    net.save(tmp_path / "net.keras")
    return tmp_path / "net.keras"


def rewritten(saved, change, method=zipfile.ZIP_STORED):
    """The same file with members that `change(name, content)` gives."""
    with zipfile.ZipFile(saved) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(saved, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, change(name, content))


def widened(saved, units):
    """The same file with another number of units of the first layer."""

    def widen(name, content):
        if name != "config.json":
            return content
        config = json.loads(content)
        (_, first, last) = config["config"]["layers"]
        first["config"]["units"] = units
        last["build_config"]["input_shape"] = [None, units]
        return json.dumps(config)

    rewritten(saved, widen)


@pytest.mark.parametrize("units", [10**7, 10**9, 10**13])
def test_layers_that_the_file_does_not_hold_are_never_made(saved, units):
    widened(saved, units)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ExportError, match=r"its layers have .* of weights, and the file holds 211 KiB"):
        read_keras_file(saved)
    inputs = keras.Input((3,))
    keras.Model(inputs, keras.layers.Dense(2)(inputs))  # in a scope whose end makes all that is left to make
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024  # KiB


@pytest.mark.parametrize("member", ["config.json", "model.weights.h5"])
def test_a_bomb_is_not_unpacked(saved, member):
    rewritten(saved, lambda name, content: bytes(2**28) if name == member else content, zipfile.ZIP_DEFLATED)
    with pytest.raises(ExportError, match="unpacks to 256"):
        read_keras_file(saved)


def test_a_description_that_is_too_long_is_not_read(saved):
    rewritten(saved, lambda name, content: b" " * 2**26 + content if name == "config.json" else content)
    with pytest.raises(ExportError, match=r"config\.json has 64 MiB"):
        read_keras_file(saved)


def test_a_layer_alone_is_no_net(tmp_path):
    layer = keras.layers.Dense(2)
    layer.build((None, 3))
    keras.saving.save_model(layer, tmp_path / "layer.keras")
    with pytest.raises(ExportError, match=r"it holds a Dense, which is no keras\.Model"):
        read_keras_file(tmp_path / "layer.keras")


def test_a_compressed_file_and_layers_with_a_state_are_read(saved, tmp_path):
    rewritten(saved, lambda _, content: content, zipfile.ZIP_DEFLATED)
    assert read_keras_file(saved).count_params() == 785 * 64 + 65 * 10
    stateful = keras.Sequential([keras.Input(batch_shape=(2, 5, 3)), keras.layers.LSTM(4, stateful=True)])
    stateful.save(tmp_path / "stateful.keras")
    inputs = np.ones((2, 5, 3), "float32")
    np.testing.assert_array_equal(read_keras_file(tmp_path / "stateful.keras")(inputs), stateful(inputs))
