"""A kernel by itself is the same kernel, with the same shapes."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfperf.exports.servable import Servable
from tfperf.hardware.counting.tracing import forward_pass, training_pass
from tfperf.hardware.kernels.alone import Among, alone, can_be_alone
from tfperf.hardware.kernels.traced import Session, Traced

MEMORY = Among(2**16)


def floats(*shape):
    return np.ones(shape, "float32")


def ran(function, *arrays):
    """What runs of a function of tensors and does not only hand on."""
    concrete = tf.function(function).get_concrete_function(*[tf.constant(array) for array in arrays])
    with Traced(concrete, arrays) as traced:
        return traced.operations(runs=1)


@pytest.fixture
def seen(monkeypatch):
    """What TensorFlow says of every traced run."""
    stats = []
    traced = Session.traced
    monkeypatch.setattr(Session, "traced", lambda *args: stats.append(traced(*args)) or stats[-1])
    return stats


def nets():
    layers = keras.layers
    yield (
        "convolutions",
        [
            keras.Input((8, 8, 3)),
            layers.Conv2D(8, 3, activation="relu"),
            layers.BatchNormalization(),
            layers.DepthwiseConv2D(3),
            layers.Flatten(),
            layers.Dense(4),
        ],
    )
    yield (
        "embedding",
        [
            keras.Input((6,), dtype="int32"),
            layers.Embedding(50, 8),
            layers.LayerNormalization(),
            layers.GlobalAveragePooling1D(),
            layers.Dense(4, activation="softmax"),
        ],
    )
    yield "recurrent", [keras.Input((5, 4)), layers.LSTM(6), layers.Dense(2)]  # fmt: skip


@pytest.mark.parametrize(("name", "net"), [*nets()])
@pytest.mark.parametrize("training", [False, True])
def test_products_of_nets_run_alone_but_those_in_loops(name, net, training):
    servable = Servable.from_net(keras.Sequential(net, name=name))
    function = training_pass(servable) if training else forward_pass(servable)
    operations = [one for one in ran(function, *servable.signature.random_inputs(2)) if can_be_alone(one)]
    products = [one for one in operations if "Conv2D" in one.type or "MatMul" in one.type]
    assert len(products) >= len(net) // 3
    for operation in products:
        assert alone(operation, MEMORY) > 0


def test_it_is_the_same_kernel_with_the_same_shapes(seen):
    weights, bias = tf.Variable(floats(32, 16)), tf.Variable(floats(16))
    operations = ran(lambda x: tf.nn.relu(tf.nn.bias_add(x @ weights, bias)), floats(8, 32))
    (product,) = [one for one in operations if one.type == "MatMul"]
    seen.clear()
    alone(product, MEMORY)
    kernels = [one for run in seen for one in run if one.node_name.endswith("/kernel")]
    assert len(kernels) >= 9
    for one in kernels:
        assert one.timeline_label.split(" = ")[1].startswith(f"{product.kernel}(")
        assert [axis.size for axis in one.output[0].tensor_description.shape.dim] == [8, 16]


def test_so_much_is_read_between_two_runs_of_it(seen):
    (root,) = [one for one in ran(tf.sqrt, floats(4)) if one.type == "Sqrt"]
    seen.clear()
    alone(root, Among(2**20))
    order = sorted(seen[0], key=lambda one: one.all_start_nanos)
    kernels = [place for place, one in enumerate(order) if one.node_name.endswith("/kernel")]
    sweeps = [place for place, one in enumerate(order) if " = Max(" in one.timeline_label]
    assert len(kernels) == len(sweeps) == 3
    assert all(sweep < kernel for sweep, kernel in zip(sweeps, kernels, strict=True))
    assert all(kernel < sweep for sweep, kernel in zip(sweeps[1:], kernels, strict=False))
    (memory,) = {
        one.output[0].tensor_description.shape.dim[0].size
        for one in seen[0]
        if one.output and len(one.output[0].tensor_description.shape.dim) == 1 and "Read" in one.timeline_label
        and one.output[0].tensor_description.shape.dim[0].size > 4
    }  # fmt: skip
    assert 4 * memory == 2**20


def test_the_first_runs_before_all_others(seen):
    """The sweep through memory has a run of its own, so that TensorFlow's threads sleep when the kernel begins."""
    (root,) = [one for one in ran(tf.sqrt, floats(4)) if one.type == "Sqrt"]
    seen.clear()
    assert alone(root, Among(2**20, first=True)) > 0
    assert len(seen) >= 9
    for run in seen:
        assert sum(one.node_name.endswith("/kernel") for one in run) == 1
        assert not any(" = Max(" in one.timeline_label for one in run)


def test_strings_cannot_be_alone():
    (length,) = [
        one for one in ran(lambda x: tf.strings.length(x), np.array(["a", "bc"], dtype=object)) if "Length" in one.type
    ]
    assert not can_be_alone(length)
