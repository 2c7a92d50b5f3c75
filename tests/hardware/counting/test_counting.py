"""Arithmetic and traffic by the two ways, against each other and against numbers derived by hand."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfperf.errors import HardwareError
from tfperf.exports.servable import Servable
from tfperf.hardware.counting.graph_work import graph_work
from tfperf.hardware.counting.hlo_work import hlo_work
from tfperf.hardware.counting.tracing import forward_pass, program_of, training_pass
from tfperf.hardware.counting.work import Work
from tfperf.nets import get_net

BATCHES = (1, 64)


def mlp_products(batch):
    """The net has layers of 512, 256, 128 and 2."""
    return [2 * batch * one * other for one, other in ((512, 256), (256, 128), (128, 2))]


def mnist_cnn_products(batch):
    """A convolution of 3x3 on 28x28x1, then 5408-64-10."""
    return [2 * batch * 26 * 26 * 32 * 3 * 3, 2 * batch * 5408 * 64, 2 * batch * 64 * 10]


def resnet18_products(batch):
    """The first is of the images, which need no gradient."""
    products, size, channels = [28 * 28 * 64 * 9], 28, 64
    for stage, width in enumerate((64, 128, 256, 512)):
        for block in range(2):
            if block == 0 and stage:
                size = -(-size // 2)
                products.append(size * size * width * channels)
            products += [size * size * width * 9 * channels, size * size * width * 9 * width]
            channels = width
    return [2 * batch * one for one in (*products, 512 * 10)]


def transformer_products(batch, length=64, width=128, hidden=512, depth=2):
    """In each block four of width by width, two of attention, two of the dense layers; then the classes."""
    block = 4 * length * width * width + 2 * length * length * width + 2 * length * width * hidden
    return [2 * batch * depth * block, 2 * batch * width * 10]


PRODUCTS = {
    "mlp": mlp_products,
    "mnist_cnn": mnist_cnn_products,
    "resnet18": resnet18_products,
    "transformer": transformer_products,
}


@pytest.fixture(scope="module", params=PRODUCTS)
def net(request):
    return request.param, Servable.from_net(get_net(request.param, seed=0))


def counted(servable, function, batch):
    """The totals by the graph, and by what XLA is given."""
    arrays = [tf.constant(array) for array in servable.signature.random_inputs(batch)]
    traced = tf.function(function).get_concrete_function(*arrays)
    return (
        Work.sum("graph", graph_work(traced)),
        Work.sum("hlo", hlo_work(program_of(function, arrays))),
    )


@pytest.mark.parametrize("batch", BATCHES)
def test_the_forward_pass_has_the_work_derived_by_hand(net, batch):
    name, servable = net
    by_graph, by_hlo = counted(servable, forward_pass(servable), batch)
    assert by_graph.products == by_hlo.products == sum(PRODUCTS[name](batch))
    assert by_hlo.flops == pytest.approx(by_graph.flops, rel=0.01)
    assert by_hlo.bytes == pytest.approx(by_graph.bytes, rel=0.1)
    weights = sum(weight.nbytes for weight in servable.net.get_weights())
    assert by_graph.read > 0.9 * weights


@pytest.mark.parametrize("batch", BATCHES)
def test_training_takes_three_times_the_products_but_for_the_gradient_of_the_inputs(net, batch):
    name, servable = net
    by_graph, by_hlo = counted(servable, training_pass(servable), batch)
    first = 0 if name == "transformer" else PRODUCTS[name](batch)[0]  # whose first products take what is learnt
    assert by_graph.products == by_hlo.products == 3 * sum(PRODUCTS[name](batch)) - first
    assert by_hlo.flops == pytest.approx(by_graph.flops, rel=0.02)
    assert by_hlo.bytes == pytest.approx(by_graph.bytes, rel=0.1)


LAYERS = {
    "strided": (lambda: keras.layers.Conv2D(8, 3, strides=2, padding="same"), (9, 9, 4), 5 * 5 * 8 * 9 * 4),
    "valid": (lambda: keras.layers.Conv2D(8, (3, 5)), (9, 9, 4), 7 * 5 * 8 * 15 * 4),
    "dilated": (lambda: keras.layers.Conv2D(8, 3, dilation_rate=2), (10, 10, 4), 6 * 6 * 8 * 9 * 4),
    "grouped": (lambda: keras.layers.Conv2D(8, 3, groups=2), (9, 9, 4), 7 * 7 * 8 * 9 * 2),
    "depthwise": (lambda: keras.layers.DepthwiseConv2D(3, depth_multiplier=2), (9, 9, 4), 7 * 7 * 8 * 9),
    "separable": (lambda: keras.layers.SeparableConv2D(8, 3), (9, 9, 4), 7 * 7 * 4 * 9 + 7 * 7 * 4 * 8),
    "transposed": (lambda: keras.layers.Conv2DTranspose(8, 2, strides=2), (9, 9, 4), 9 * 9 * 8 * 4 * 4),
    "one dimension": (lambda: keras.layers.Conv1D(8, 3, padding="same"), (9, 4), 9 * 8 * 3 * 4),
    "three dimensions": (lambda: keras.layers.Conv3D(8, 2), (5, 5, 5, 4), 4 * 4 * 4 * 8 * 8 * 4),
    "einsum": (lambda: keras.layers.EinsumDense("abc,cd->abd", (None, 8)), (9, 4), 9 * 4 * 8),
}


CASES = [(form, training) for form in LAYERS for training in (False, True)]
CASES.remove(("grouped", True))  # Keras compiles it as one function, whose gradient gives that of the inputs, too


@pytest.mark.parametrize(("form", "training"), CASES)
def test_no_convolution_is_undercounted(form, training):
    layer, shape, products = LAYERS[form]
    scale = keras.layers.Normalization(axis=None, mean=0.0, variance=1.0)
    servable = Servable.from_net(keras.Sequential([keras.Input(shape), scale, layer(), keras.layers.Flatten()]))
    function = training_pass(servable) if training else forward_pass(servable)
    for work in counted(servable, function, 3):
        # the gradient of the weights takes as much again; that of the inputs is asked by no weight
        separable = 2 * 3 * 7 * 7 * 4 * 8 if training and form == "separable" else 0  # but by the one before
        assert work.products == 2 * 3 * products * (2 if training else 1) + separable


def test_loops_are_refused_in_a_line():
    @tf.function
    def loops(x):
        for _ in tf.range(tf.cast(x[0], tf.int32)):
            x = x * 2.0
        return x

    with pytest.raises(HardwareError, match="expected a net without loops and branches"):
        graph_work(loops.get_concrete_function(tf.ones([3])))


def test_a_shape_that_is_open_is_refused():
    function = tf.function(lambda x: x + 1.0, input_signature=[tf.TensorSpec([None, 3])])
    with pytest.raises(HardwareError, match=r"expected shapes that are known before a run; of .* one is \(None, 3\)"):
        graph_work(function.get_concrete_function())


def test_what_nobody_asks_for_is_not_counted():
    def wasteful(x):
        tf.linalg.matmul(x, x)
        return x + 1.0

    x = tf.ones([4, 4])
    assert Work.sum("all", graph_work(tf.function(wasteful).get_concrete_function(x))).products == 0
    assert Work.sum("all", hlo_work(program_of(wasteful, [x]))).products == 0


def test_functions_that_are_called_are_counted_in_their_place():
    inner = tf.function(lambda x: tf.linalg.matmul(x, x))

    def outer(x):
        return inner(x) + inner(x)

    x = tf.constant(np.ones((4, 4), "float32"))
    for work in (graph_work(tf.function(outer).get_concrete_function(x)), hlo_work(program_of(outer, [x]))):
        assert Work.sum("all", work).products == 2 * 2 * 4**3


def test_a_product_of_two_matrices_moves_each_once():
    def product(x, y):
        return tf.linalg.matmul(x, y)

    x, y = tf.ones([8, 32]), tf.ones([32, 16])
    for (work,) in (
        graph_work(tf.function(product).get_concrete_function(x, y)),
        hlo_work(program_of(product, [x, y])),
    ):
        assert (work.flops, work.read, work.written) == (2 * 8 * 32 * 16, 4 * (8 * 32 + 32 * 16), 4 * 8 * 16)
        assert work.intensity == work.flops / (work.read + work.written)
