"""What runs of a function: names, kernels, shapes, and where the kernels lie among the kinds."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfperf.errors import HardwareError
from tfperf.exports.servable import Servable
from tfperf.hardware.counting.graph_work import work_of
from tfperf.hardware.counting.tracing import forward_pass, training_pass
from tfperf.hardware.kernels.bench import FAMILIES, kernel_seconds
from tfperf.hardware.kernels.kinds import Kind, Spot, place_of
from tfperf.hardware.kernels.ran import Ran, Traced


def ran(function, *arrays, rewritten=True):
    """What runs of a function of tensors, by the type of its operations."""
    concrete = tf.function(function).get_concrete_function(*[tf.constant(array) for array in arrays])
    with Traced(concrete, arrays, rewritten=rewritten) as traced:
        return {one.type: one for one in traced.operations(runs=3)}


def floats(*shape):
    return np.ones(shape, "float32")


def test_a_dense_layer_is_one_kernel_with_its_work():
    weights, bias = tf.Variable(floats(32, 16)), tf.Variable(floats(16))
    found = ran(lambda x: tf.nn.relu(tf.nn.bias_add(x @ weights, bias)), floats(8, 32))
    product = found["MatMul"]
    assert product.fused == ("BiasAdd", "Relu")
    assert "Relu" not in found
    assert product.seconds > 0
    assert [spec.shape.as_list() for spec in product.inputs] == [[8, 32], [32, 16], [16]]
    work = work_of("product", product)
    assert (work.products, work.read, work.written) == (2 * 8 * 32 * 16, 4 * (8 * 32 + 32 * 16 + 16), 4 * 8 * 16)
    assert product.get_attr("transpose_a") is False
    with pytest.raises(ValueError, match="Received: nonsense"):
        product.get_attr("nonsense")


def test_as_it_is_written_nothing_is_fused():
    weights, bias = tf.Variable(floats(32, 16)), tf.Variable(floats(16))
    found = ran(lambda x: tf.nn.relu(tf.nn.bias_add(x @ weights, bias)), floats(8, 32), rewritten=False)
    assert {"MatMul", "BiasAdd", "Relu"} <= set(found)


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("_MklNativeFusedConv2D", "Conv2D"),
        ("_MklNativeConv2DWithBias", "Conv2D"),
        ("_MklNativeConv2DBackpropFilterWithBias", "Conv2DBackpropFilter"),
        ("_FusedMatMul", "MatMul"),
        ("_MklMatMul", "MatMul"),
        ("_MklBatchMatMulV2", "BatchMatMulV2"),
        ("_FusedBatchNormEx", "FusedBatchNormV3"),
        ("_MklFusedBatchNormV3", "FusedBatchNormV3"),
        ("FusedBatchNormV3", "FusedBatchNormV3"),
        ("_Arg", "_Arg"),
        ("AddV2", "AddV2"),
    ],
)
def test_what_a_kernel_does_first(kernel, kind):
    assert Ran("name", kernel, (), (), {}, 0.0).type == kind


CASES = {
    "a product": (lambda x: x @ tf.ones([32, 8]), floats(4, 32), "MatMul", "matrix", (4, 16)),
    "products": (lambda x: x @ x, floats(3, 8, 8), "BatchMatMulV2", "matrices", (3, 8)),
    "with one right matrix": (
        lambda x: x @ tf.ones([1, 8, 8]), floats(3, 5, 8), "BatchMatMulV2", "matrix_shared", (15, 8),
    ),
    "an einsum": (
        lambda x: tf.einsum("abc,abd->acd", x, x), floats(3, 8, 8), "Einsum", "einsum", (3, 8),
    ),
    "a convolution": (
        lambda x: tf.nn.conv2d(x, tf.ones([3, 3, 16, 64]), 2, "SAME"), floats(2, 8, 8, 16), "Conv2D", "convolution",
        (2, 32, 4),
    ),
    "of an image": (
        lambda x: tf.nn.conv2d(x, tf.ones([3, 3, 1, 64]), 1, "SAME"), floats(2, 8, 8, 1), "Conv2D", "first_convolution",
        (2, 64, 8),
    ),
    "pointwise": (lambda x: x + x, floats(4, 5), "AddV2", "pointwise", (20,)),
    "with a number": (lambda x: x * 2.0, floats(4, 5), "Mul", "pointwise", (20,)),
    "along channels": (lambda x: x * tf.ones([5]), floats(4, 5), "Mul", "broadcast", (20, 5)),
    "along rows": (lambda x: x - tf.ones([4, 1]), floats(4, 5), "Sub", "broadcast", (20, 5)),
    "a softmax": (tf.nn.softmax, floats(4, 5), "Softmax", "softmax", (20, 5)),
    "a mean": (lambda x: tf.reduce_mean(x, 0), floats(4, 5), "Mean", "reduction", (20, 5)),
    "a transpose": (lambda x: tf.transpose(x, [0, 2, 1]), floats(2, 4, 5), "Transpose", "transpose", (40,)),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_place_of_a_kernel(case):
    function, array, kind, family, sizes = CASES[case]
    place = place_of(ran(function, array, rewritten=False)[kind])
    assert place is not None
    assert (place.kind.family, place.kind.dtype) == (family, "float32")
    assert place.sizes == pytest.approx(sizes)


def test_what_is_of_no_kind_has_no_place():
    assert place_of(ran(lambda x: tf.gather(x, [0, 1]), floats(4, 5), rewritten=False)["GatherV2"]) is None


KINDS = [
    Kind("matrix", "MatMul", "float32", ("BiasAdd", "Relu")),
    Kind("matrix", "MatMul", "bfloat16"),
    Kind("matrix_shared", "BatchMatMulV2", "float32"),
    Kind("matrices", "BatchMatMulV2", "float32"),
    Kind("einsum", "Einsum", "float32", ("aecd,abcd->acbe",)),
    Kind("convolution", "Conv2D", "float32", ("3x3", "BiasAdd")),
    Kind("gradient", "Conv2DBackpropFilter", "float32", ("3x3",)),
    Kind("gradient", "Conv2DBackpropInput", "float32", ("1x1",)),
    Kind("first_convolution", "Conv2D", "float32", ("3x3", "of 1", "BiasAdd")),
    Kind("depthwise", "DepthwiseConv2dNative", "float32", ("3x3",)),
    Kind("pointwise", "Relu", "float32", ("1",)),
    Kind("pointwise", "AddV2", "float32", ("2", "scalar")),
    Kind("pointwise", "AddN", "float32", ("3",)),
    Kind("broadcast", "BiasAdd", "float32", ("channels",)),
    Kind("broadcast", "Mul", "float32", ("rows",)),
    Kind("softmax", "Softmax", "float32"),
    Kind("reduction", "Mean", "float32", ("last",)),
    Kind("reduction", "Sum", "float32", ("others",)),
    Kind("transpose", "Transpose", "float32"),
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_kind_can_be_measured_from_its_smallest_size_on(kind):
    family = FAMILIES[kind.family]
    assert kernel_seconds(kind, family.least) > 0
    larger = tuple(size * step for size, step in zip(family.least, family.steps, strict=True))
    assert kernel_seconds(kind, larger) > 0


def test_a_training_pass_runs_as_well():
    servable = Servable.from_net(
        keras.Sequential([keras.Input((6, 6, 3)), keras.layers.Conv2D(4, 3), keras.layers.Flatten()])
    )
    found = ran(training_pass(servable), floats(2, 6, 6, 3))
    place = place_of(found["Conv2DBackpropFilter"])
    assert place == Spot(Kind("gradient", "Conv2DBackpropFilter", "float32", ("3x3",)), (2, pytest.approx(12**0.5), 4))


def test_variables_keep_their_values_in_the_net():
    net = keras.Sequential([keras.Input((3,)), keras.layers.BatchNormalization(), keras.layers.Dense(2)])
    before = [weight.copy() for weight in net.get_weights()]
    ran(training_pass(Servable.from_net(net)), floats(4, 3) * 7)
    assert all(np.array_equal(one, other) for one, other in zip(before, net.get_weights(), strict=True))


def test_a_lookup_table_is_refused_in_a_line():
    lookup = keras.layers.StringLookup(vocabulary=["a", "b"])
    net = keras.Sequential([keras.Input((1,), dtype="string"), lookup])
    concrete = tf.function(forward_pass(Servable.from_net(net))).get_concrete_function(tf.constant([["a"]]))
    with pytest.raises(HardwareError, match="expected a net that keeps variables only"):
        Traced(concrete, [np.array([["a"]], dtype=object)])
