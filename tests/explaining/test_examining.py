"""Where the time of a function goes: known answers, and sums that must hold."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfperf.explaining.examining import call_seconds, examine, layers_of
from tfperf.exports.servable import Servable
from tfperf.hardware.counting.tracing import forward_pass
from tfperf.hardware.counting.work import OUTSIDE
from tfperf.hardware.kernels.roofline import Bound


def seen(function, arrays, prediction, time_limit=0.5):
    """What is seen of a function in a short look."""
    return examine(tf.function(function), arrays, prediction, eager=function, time_limit=time_limit)


def bounds(examined):
    return {call.way: call.bound for call in examined.calls}


def three_looks(function, arrays, prediction):
    """The bounds that up to three looks give, of calls so long that few are seen.

    A machine that is busy for a second may slow the calls and not the kernels: one of the looks must be right.
    """
    return (bounds(seen(function, arrays, prediction, time_limit=3.0)) for _ in range(3))


def test_a_chain_of_tiny_operations_is_overhead(prediction):
    def chain(x):
        for _ in range(60):
            x = tf.maximum(x * 0.5, 0.1)
        return x

    assert bounds(seen(chain, [np.ones(8, "float32")], prediction)) == dict.fromkeys(("eager", "graph"), Bound.OVERHEAD)


def test_a_large_pointwise_sum_is_bandwidth(prediction):
    def total(x, y):
        return x + y

    looks = three_looks(total, [np.ones(2**24, "float32")] * 2, prediction)
    assert dict.fromkeys(("eager", "graph"), Bound.BANDWIDTH) in looks


def test_a_large_product_is_compute(prediction):
    looks = three_looks(tf.linalg.matmul, [np.ones((2048, 2048), "float32")] * 2, prediction)
    assert dict.fromkeys(("eager", "graph"), Bound.COMPUTE) in looks


@pytest.fixture(scope="module")
def net():
    layers = [keras.layers.Dense(16, activation="relu", name="hidden"), keras.layers.Dense(2, name="logits")]
    return keras.Sequential([keras.Input((8,)), *layers], name="small")


@pytest.fixture
def examined(net, prediction):
    servable = Servable.from_net(net)
    function = forward_pass(servable)
    arrays = servable.signature.random_inputs(4)
    return examine(tf.function(function), arrays, prediction, eager=function, time_limit=0.5)


def test_a_small_net_called_eagerly_is_overhead(examined):
    eager, graph = examined.calls
    assert (eager.way, eager.bound) == ("eager", Bound.OVERHEAD)
    assert eager.predicted is None
    assert 0 < graph.overhead_share <= 1
    for call in examined.calls:
        assert call.between < call.seconds
        assert sum(call.spent) == pytest.approx(max(call.seconds, sum(call.spent) - call.between))
    assert eager.kernels > graph.kernels  # the graph's are fused
    assert examined.comparison is not None
    assert eager.seconds == examined.comparison["eager"].median


def test_the_layers_have_all_that_the_kernels_have(examined, net):
    layers = layers_of(examined.kernels, [layer.name for layer in net.layers])
    assert [layer.name for layer in layers][:2] == ["hidden", "logits"]
    products = 2 * 4 * (8 * 16 + 16 * 2)
    assert products <= sum(layer.flops for layer in layers) < 1.5 * products
    working = [kernel for kernel in examined.kernels if kernel.work.operations]
    assert sum(layer.kernels for layer in layers) == len(working)
    for layer in layers:
        assert layer.compute + layer.bandwidth + layer.overhead == pytest.approx(layer.seconds)


def test_without_layers_the_scopes_stand_for_them(examined):
    layers = layers_of(examined.kernels, [])
    assert all(layer.name == OUTSIDE or "/" in layer.name for layer in layers)
    assert any("hidden" in layer.name for layer in layers)


def test_a_call_takes_its_own_time_and_that_of_its_kernels(examined, prediction):
    inside = sum(kernel.cost.seconds for kernel in examined.kernels)
    dispatched = sum(kernel.work.operations for kernel in examined.kernels)
    assert call_seconds(examined.kernels, prediction) == pytest.approx(1e-4 + inside + dispatched * 1e-6)


def test_what_cannot_be_called_eagerly_is_a_graph_alone(prediction):
    found = examine(tf.function(lambda x: x * 2.0), [np.ones(4, "float32")], prediction, eager=None, time_limit=0.3)
    assert [call.way for call in found.calls] == ["graph"]
    assert found.comparison is None


def test_a_call_is_told_by_medians(prediction, measured, monkeypatch):
    disturbed = measured("graph", [1.0] * 20 + [2.0] * 80)
    monkeypatch.setattr("tfperf.explaining.examining.measure", lambda *_, **__: disturbed)
    found = examine(tf.function(lambda x: x * 2.0), [np.ones(4, "float32")], prediction, eager=None)
    (call,) = found.calls
    working = [kernel.ran for kernel in found.kernels if kernel.work.operations]
    assert call.seconds == 2
    assert call.between == pytest.approx(2 - sum(one.usual for one in working), rel=1e-12)
    assert all(one.seconds > 0 for one in working)
    at_best = sum(one.seconds for one in working)
    assert found.disturbance == pytest.approx(max(1.0, sum(one.usual for one in working) / at_best))
    assert call.predicted == pytest.approx(found.predicted(call_seconds(found.kernels, prediction)))
