"""Which techniques should help: gains that follow from a machine of round numbers."""

import numpy as np
import pytest
import tensorflow as tf

from tfperf.explaining.examining import Examined, call_seconds, kernels_of, xla_of
from tfperf.explaining.explanation import Xla
from tfperf.explaining.techniques import Elsewhere, suggestions
from tfperf.hardware.counting.graph_work import graph_work
from tfperf.hardware.kernels.traced import Traced

NO_XLA = Xla(compiled=False, reason="no", operations=1, kernels=0, fusions=0, bytes_before=1, bytes_after=0)


@pytest.fixture
def kernels(prediction):
    """A function that gives the kernels of a function."""

    def kernels(function, *arrays):
        concrete = tf.function(function).get_concrete_function(*[tf.constant(array) for array in arrays])
        with Traced(concrete, arrays) as traced:
            return kernels_of(traced.operations(runs=2), prediction)

    return kernels


@pytest.fixture
def product(kernels):
    return kernels(lambda x: x @ tf.ones([256, 256]), np.ones((1, 256), "float32"))


def suggested(
    prediction, calls, kernels, xla=NO_XLA, after=(), larger=None, half=None, batch=1, disturbance=1.0, **options
):
    examined = Examined(tuple(calls), None, tuple(kernels), tracing_cost=0.1, disturbance=disturbance)
    return {one.recipe: one for one in suggestions(examined, batch, prediction, xla, after, larger, half, **options)}


def test_a_graph_removes_what_lies_between_eager_kernels(prediction, call_of_net, product):
    eager = call_of_net("eager", seconds=2e-3, predicted=None, between=1.9e-3)
    graph = call_of_net(seconds=1.5e-4, predicted=1e-4)
    found = suggested(prediction, [eager, graph], product)["hybridize"]
    assert (found.way, found.against) == ("graph", "eager")
    assert found.gain == pytest.approx(20)
    assert found.words.endswith("an eager call spends 95% of its time. A graph is one call.")


def test_what_a_disturbed_machine_takes_is_predicted_longer(prediction, call_of_net, product):
    larger = Elsewhere("batch 64", product, 64)
    gains = [
        suggested(prediction, [call_of_net(seconds=1.0)], product, larger=larger, disturbance=one) for one in (1.0, 2.0)
    ]
    for recipe in ("batch_size_intensity", "deploy_engines"):
        assert gains[0][recipe].gain == pytest.approx(2 * gains[1][recipe].gain)


def test_fusion_is_told_from_the_bytes_that_it_saves(prediction, call_of_net, kernels):
    def chain(x):
        for factor in (0.5, 0.25, 0.125, 3.0):
            x = tf.maximum(x * factor, 0.1)
        return x

    x = np.ones(2**20, "float32")
    concrete = tf.function(chain).get_concrete_function(tf.constant(x))
    xla, after = xla_of(chain, [x], graph_work(concrete))
    assert (xla.compiled, xla.operations, xla.kernels) == (True, 8, 1)
    assert (xla.bytes_before, xla.bytes_after) == pytest.approx((8 * 8 * 2**20, 8 * 2**20), rel=0.01)
    found = suggested(prediction, [call_of_net(seconds=1.0)], kernels(chain, x), xla, after)["operator_fusion"]
    assert found.predicted == pytest.approx(1e-4 + 8 * 2**20 / 10e9, rel=0.01)
    assert "1 kernels of 8 operations" in found.words


def test_what_xla_does_not_compile_is_told_and_not_suggested(prediction, call_of_net, kernels):
    def strings(x):
        return tf.strings.length(tf.strings.as_string(x))

    xla, after = xla_of(strings, [np.ones(3, "float32")], [])
    assert (xla.compiled, after) == (False, ())
    assert xla.reason
    plain = kernels(lambda x: x * 2.0, np.ones(3, "float32"))
    assert "operator_fusion" not in suggested(prediction, [call_of_net(seconds=1.0)], plain, xla, after)


def test_a_larger_batch_is_told_for_each_example(prediction, call_of_net, product, kernels):
    more = kernels(lambda x: x @ tf.ones([256, 256]), np.ones((64, 256), "float32"))
    found = suggested(prediction, [call_of_net()], product, larger=Elsewhere("batch 64", more, 64), batch=4)
    technique = found["batch_size_intensity"]
    assert technique.before == pytest.approx(1e-4 / 4)
    assert technique.predicted == pytest.approx(call_seconds(more, prediction) / 64)
    assert "256 KiB of weights" in technique.words


def test_weights_in_int8_are_a_quarter_of_the_bytes(prediction, call_of_net, product):
    measured = sum(one.ran.seconds for one in product if one.work.products)
    slow = [one._replace(ran=one.ran._replace(seconds=1.0)) if one.work.products else one for one in product]
    found = suggested(prediction, [call_of_net(seconds=1.0)], slow)["quantize_int8"]
    assert found.predicted == pytest.approx(0.25, rel=0.01)
    assert measured > 0


def test_what_can_be_gained_of_other_engines_is_what_lies_between_kernels(prediction, call_of_net, product):
    found = suggested(prediction, [call_of_net(seconds=1.0)], product)["deploy_engines"]
    assert found.words.startswith("That is the most: ")
    assert found.predicted == pytest.approx(sum(one.seconds for one in product) + 1e-7)
    assert "deploy_engines" not in suggested(prediction, [call_of_net(seconds=1.0)], product, deployable=False)


def test_small_gains_are_not_named_and_never_more_than_three(prediction, call_of_net, product):
    half = Elsewhere("bfloat16", product, 1)
    seconds = call_seconds(product, prediction)
    found = suggested(prediction, [call_of_net(seconds=seconds)], product, half=half, deployable=False)
    assert found == {}
    eager = call_of_net("eager", seconds=1.0, predicted=None)
    found = suggested(
        prediction, [eager, call_of_net(seconds=1.0)], product, half=half, larger=Elsewhere("batch 64", product, 64)
    )
    assert len(found) == 3
    assert next(iter(found)) == "hybridize"


def test_a_loop_that_xla_compiles_has_kernels_that_cannot_be_counted(prediction):
    def loop(x):
        return tf.while_loop(lambda n, _: n < 10, lambda n, y: (n + 1, y * 1.5), (0, x))[1]

    xla, after = xla_of(loop, [np.ones(3, "float32")], [])
    assert (xla.compiled, after) == (True, ())
    assert "loops" in xla.reason
