"""What a graph computes in, as its nodes say."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfperf.engines import Plan, build
from tfperf.engines.tensorflow_runtime import prove_precision
from tfperf.errors import EngineError
from tfperf.exports.servable import Servable


def graph_of(function, *arrays):
    return tf.function(function).get_concrete_function(*map(tf.constant, arrays)).graph.as_graph_def()


def test_products_are_counted_by_type():
    def both(x):
        return tf.matmul(x, x), tf.matmul(tf.cast(x, tf.bfloat16), tf.cast(x, tf.bfloat16))

    graph = graph_of(both, np.eye(4, dtype="float32"))
    assert prove_precision(graph, "float32") == "1 of 2 matrix products and convolutions in float32"


def test_another_precision_than_was_asked_for_is_an_error():
    graph = graph_of(tf.linalg.matmul, *[np.eye(4, dtype="float32")] * 2)
    with pytest.raises(EngineError, match="in bfloat16; the graph has 1 in float32"):
        prove_precision(graph, "bfloat16")


@pytest.mark.filterwarnings("ignore:Layer InputLayer does not have:UserWarning")  # Keras names what it leaves as it is
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras's variables under NumPy 2
def test_a_net_that_keras_has_quantized_runs():
    net = keras.Sequential([keras.Input([16]), keras.layers.Dense(8), keras.layers.Dense(4)])
    net.quantize("int8")
    servable, x = Servable.from_net(net), np.ones((2, 16), np.float32)
    with build(servable, Plan(engine="graph")) as runner:
        (outputs,) = runner(x)
    np.testing.assert_allclose(outputs, net(x), rtol=1e-5)
