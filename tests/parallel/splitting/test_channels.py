"""A net split by channels gives the outputs of the net, whatever it is made of, and its bytes are counted."""

import json
import subprocess
import sys

import keras
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tfperf.errors import TfperfError
from tfperf.parallel import ChannelSplit
from tfperf.parallel.splitting import channels

FEW = settings(
    max_examples=6, deadline=None, derandomize=True, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)


def differs(net, devices, inputs):
    """The largest difference of an output from the whole net's, as a share of the largest output."""
    pairs = zip(keras.tree.flatten(ChannelSplit(net, devices)(inputs)), keras.tree.flatten(net(inputs)), strict=True)
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)


@FEW
@given(data=st.data(), devices=st.integers(2, 3))
def test_outputs_are_those_of_the_net(random_nets, data, devices):
    plans, build, examples = random_nets
    net = build(data.draw(plans))
    assert differs(net, ["CPU:0"] * devices, examples(net)) < 1e-5


def images_net():
    """Convolutions, what may stand between them, and 7 channels that 2 or 3 devices cannot share equally."""
    keras.utils.set_random_seed(0)
    layers = [
        keras.layers.Conv2D(7, 3, activation="relu", bias_initializer="normal"),
        keras.layers.BatchNormalization(),
        keras.layers.MaxPooling2D(2),
        keras.layers.Conv2D(5, 3, activation="tanh", bias_initializer="normal"),  # by its input channels
        keras.layers.Conv2D(7, 1, bias_initializer="normal"),
        keras.layers.Activation("relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(8, bias_initializer="normal"),  # by its input channels, which Flatten has interleaved
        keras.layers.Dense(6, "softmax", bias_initializer="normal"),  # whole: a softmax needs all channels
        keras.layers.Dense(4, bias_initializer="normal"),  # gathered at the end
    ]
    net = keras.Sequential([keras.Input([12, 12, 2]), *layers])
    generator = np.random.default_rng(1)
    net.layers[1].set_weights([generator.random(7).astype(np.float32) + 0.5 for _ in range(4)])
    return net


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(0).standard_normal([3, 12, 12, 2]).astype(np.float32)


@pytest.mark.parametrize("devices", [2, 3])
def test_a_convolutional_net_is_split_in_pairs(images, devices):
    net = images_net()
    assert differs(net, ["CPU:0"] * devices, images) < 1e-5
    split = ChannelSplit(net, ["CPU:0"] * devices)
    names = [layer.name for layer in net.layers if isinstance(layer, keras.layers.Conv2D | keras.layers.Dense)]
    pair = ["output channels", "input channels"]
    assert split.split_layers == dict(zip([*names[:4], names[5]], [*pair, *pair, pair[0]], strict=True))
    weights = sum(array.nbytes for array in net.get_weights())
    assert max(split.weight_bytes) < weights
    assert sum(split.weight_bytes) >= weights


def test_a_flatten_that_takes_the_channels_for_the_first_axis_is_that_of_the_net(images):
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Conv2D(7, 3), keras.layers.Flatten("channels_first"), keras.layers.Dense(8)]
    net = keras.Sequential([keras.Input([12, 12, 2]), *layers])
    assert differs(net, ["CPU:0"] * 2, images) < 1e-5


def test_a_bias_that_is_forgotten_is_noticed(images, monkeypatch):
    monkeypatch.setattr(channels._BiasThenActivation, "__call__", lambda self, total: self.activation(total))
    assert differs(images_net(), ["CPU:0"] * 2, images) > 1e-3


def test_a_bias_that_every_device_adds_is_noticed(images, monkeypatch):
    right = channels._BiasThenActivation.__call__

    def twice(self, total):
        return right(self, total + self.bias)

    monkeypatch.setattr(channels._BiasThenActivation, "__call__", twice)
    assert differs(images_net(), ["CPU:0"] * 2, images) > 1e-3


def test_channels_in_the_wrong_order_are_noticed(images, monkeypatch):
    monkeypatch.setattr(channels.np, "argsort", lambda order: np.arange(len(order))[::-1])
    assert differs(images_net(), ["CPU:0"] * 2, images) > 1e-3


def test_what_cannot_be_split_is_refused():
    few = keras.Sequential([keras.Input([4]), keras.layers.Dense(2)])
    masked = keras.Sequential([keras.Input([3]), keras.layers.Embedding(5, 4, mask_zero=True)])
    open_size = keras.Sequential([keras.Input([None, 4]), keras.layers.Dense(4)])
    for net, devices in ((few, 3), (few, 1), (few, 0), (masked, 2), (open_size, 2)):
        with pytest.raises(TfperfError, match=r"^expected [^\n]* Received: [^\n]*$"):
            ChannelSplit(net, ["CPU:0"] * devices)


ON_TWO_DEVICES = """
import json, sys
import keras, numpy as np, tensorflow as tf
sys.path.insert(0, sys.argv[1])
from tfperf.parallel import ChannelSplit, Pipeline

parts = [tf.config.LogicalDeviceConfiguration() for _ in range(3)]
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], parts)
from test_channels import images_net

net, images = images_net(), np.ones([6, 12, 12, 2], np.float32)
pipeline = Pipeline(net, ["CPU:0", "CPU:1"])
pipeline.compile("adam", "mse")
loss = pipeline.train_on_batch(images, np.ones([6, 4], np.float32), 2)
results = {
    "places": [sorted({v.value.device[-5:] for v in stage.net.weights}) for stage in pipeline.stages],
    "slots": [sorted({v.value.device[-5:] for v in stage._optimizer.variables}) for stage in pipeline.stages],
}
for number in (2, 3):
    split = ChannelSplit(net, [f"CPU:{index}" for index in range(number)])
    predicted = {}
    for exchange in split.exchanges:
        predicted[exchange.layer] = predicted.get(exchange.layer, 0) + 6 * exchange.bytes_per_example
    results[f"predicted {number}"], results[f"counted {number}"] = predicted, split.count_bytes(6)
    results[f"error {number}"] = float(np.abs(split(images) - net(images)).max())
print(json.dumps(results))
"""


def test_on_devices_of_their_own_weights_lie_where_they_belong_and_bytes_are_as_predicted():
    process = subprocess.run(
        [sys.executable, "-c", ON_TWO_DEVICES, __file__.rpartition("/")[0]], capture_output=True, text=True, timeout=120
    )
    assert process.returncode == 0, process.stderr[-2000:]
    results = json.loads(process.stdout.splitlines()[-1])
    assert results["places"] == results["slots"] == [["CPU:0"], ["CPU:1"]]
    for number in (2, 3):
        assert results[f"error {number}"] < 1e-5
        assert results[f"counted {number}"] == results[f"predicted {number}"]
        sums = [value for name, value in results[f"counted {number}"].items() if name not in ("inputs", "outputs")]
        # a convolution of 3x3x5 outputs, a Dense of 8: each partial sum is collected and sent back
        assert sums == [2 * (number - 1) * 6 * 4 * size for size in (3 * 3 * 5, 8)]
        assert results[f"counted {number}"]["inputs"] == (number - 1) * 6 * 4 * 12 * 12 * 2
