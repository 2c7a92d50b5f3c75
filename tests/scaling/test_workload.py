"""Workloads: layers of Keras nets, and when their gradients are ready."""

import keras
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfperf.errors import TfperfError
from tfperf.nets import get_net
from tfperf.scaling import BatchTimes, Layer, Workload


def test_gradients_come_from_the_last_layer_to_the_first():
    """A third of 3 s is forward; of the 2 s of the backward pass the last layer has 3 of 4 shares."""
    net = Workload("net", (Layer((10, 20), 1), Layer((30,), 3)), 8, 3.0)
    assert net.gradients == ((30, 2.5), (10, 3.0), (20, 3.0))
    assert net.size == 60
    assert net.examples_per_second == pytest.approx(8 / 3)


def test_layers_without_work_are_ready_at_once():
    net = Workload("net", (Layer((1,), 0.0), Layer((2,), 0.0)), 1, 3.0)
    assert net.gradients == ((2, 1.0), (1, 1.0))


def test_another_batch_is_the_same_net():
    net = Workload.uniform("net", 100, 4, 8, 1.0)
    larger = net.at_batch(32, 3.0)
    assert larger.size == net.size == 100
    assert (larger.batch, larger.seconds) == (32, 3.0)


@pytest.fixture(scope="module")
def small():
    inputs = keras.Input((8, 8, 3))
    x = keras.layers.Conv2D(4, 3, name="conv")(inputs)
    x = keras.layers.BatchNormalization(name="norm")(x)
    x = keras.layers.Flatten()(x)
    return keras.Model(inputs, keras.layers.Dense(10, name="dense")(x))


def test_layers_of_a_net(small):
    """A convolution applies 108 weights at 36 places, a product 1,440 once; moving averages have no gradient."""
    conv, norm, dense = Workload.from_net(small, 4, 1.0).layers
    assert conv == Layer((4 * 4, 4 * 108), 108 * 36)
    assert norm == Layer((16, 16), 4 * 36)
    assert dense == Layer((40, 4 * 1440), 1440)


def test_frozen_layers_exchange_nothing(small):
    small.get_layer("dense").trainable = False
    try:
        assert len(Workload.from_net(small, 4, 1.0).layers) == 2
    finally:
        small.get_layer("dense").trainable = True


def test_all_weights_of_a_known_net_are_there():
    net = get_net("transformer")
    weights = sum(4 * int(weight.value.shape.num_elements()) for weight in net.trainable_variables)
    assert Workload.from_net(net, 1, 1.0).size == weights


def test_a_net_without_weights_is_refused():
    with pytest.raises(TfperfError, match="weights to train"):
        Workload.from_net(keras.Sequential([keras.Input((2,)), keras.layers.ReLU()]), 1, 1.0)


@given(st.floats(0, 1), st.floats(1e-6, 1))
def test_it_finds_what_made_the_times(fixed, each):
    times = BatchTimes.fit({batch: fixed + each * batch for batch in (1, 16, 64)})
    assert times.seconds(256) == pytest.approx(fixed + 256 * each, rel=1e-6)


def test_one_time_alone_grows_with_the_batch():
    assert BatchTimes.fit({32: 0.5}).seconds(64) == pytest.approx(1.0)


def test_neither_constant_is_negative():
    """Times that fall with the batch are noise."""
    times = BatchTimes.fit({1: 1.0, 2: 0.9, 4: 0.8})
    assert times.each == 0
    assert times.fixed > 0


@pytest.mark.parametrize("measured", [{}, {1: 0.0}, {0: 1.0}, {1: float("nan")}])
def test_what_is_no_time_is_refused(measured):
    with pytest.raises(ValueError, match="seconds above 0"):
        BatchTimes.fit(measured)
