"""What runs of a function: names, kernels, shapes, and where what they take comes from."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfperf.errors import HardwareError
from tfperf.exports.servable import Servable
from tfperf.hardware.counting.graph_work import work_of
from tfperf.hardware.counting.tracing import forward_pass, training_pass
from tfperf.hardware.kernels import traced
from tfperf.hardware.kernels.kernel_run import KernelRun, TensorOrigin
from tfperf.hardware.kernels.traced import FEWEST_RUNS, RUNS, Session, Traced


def ran(function, *arrays, rewritten=True):
    """What runs of a function of tensors, by the type of its operations."""
    concrete = tf.function(function).get_concrete_function(*[tf.constant(array) for array in arrays])
    with Traced(concrete, arrays, rewritten=rewritten) as looked_into:
        return {one.type: one for one in looked_into.operations(runs=3)}


def floats(*shape):
    return np.ones(shape, "float32")


def test_a_dense_layer_is_one_kernel_with_its_work():
    weights, bias = tf.Variable(floats(32, 16)), tf.Variable(floats(16))
    found = ran(lambda x: tf.nn.relu(tf.nn.bias_add(x @ weights, bias)), floats(8, 32))
    product = found["MatMul"]
    assert product.fused == ("BiasAdd", "Relu")
    assert "Relu" not in found
    assert product.seconds > 0
    assert product.turns == 1
    assert [spec.shape.as_list() for spec in product.inputs] == [[8, 32], [32, 16], [16]]
    assert [one.origin for one in product.taken] == [TensorOrigin.GIVEN, TensorOrigin.WEIGHT, TensorOrigin.WEIGHT]
    assert [one.bytes for one in product.taken] == [4 * 8 * 32, 4 * 32 * 16, 4 * 16]
    work = work_of("product", product)
    assert (work.products, work.read, work.written) == (2 * 8 * 32 * 16, 4 * (8 * 32 + 32 * 16 + 16), 4 * 8 * 16)
    assert product.get_attr("transpose_a") is False
    with pytest.raises(ValueError, match="Received: nonsense"):
        product.get_attr("nonsense")


def test_as_it_is_written_nothing_is_fused():
    weights, bias = tf.Variable(floats(32, 16)), tf.Variable(floats(16))
    found = ran(lambda x: tf.nn.relu(tf.nn.bias_add(x @ weights, bias)), floats(8, 32), rewritten=False)
    assert {"MatMul", "BiasAdd", "Relu"} <= set(found)


def test_a_constant_and_a_variable_itself_are_told_from_what_is_given():
    table = tf.Variable(floats(10, 4))
    found = ran(lambda x: tf.transpose(table.sparse_read(tf.cast(x, tf.int32)), [1, 0]), floats(3))
    assert [one.origin for one in found["ResourceGather"].taken] == [TensorOrigin.VARIABLE, TensorOrigin.GIVEN]
    assert found["ResourceGather"].taken[0].bytes == 0
    permuted, permutation = found["Transpose"].taken
    assert (permuted.origin, permutation.origin) == (TensorOrigin.GIVEN, TensorOrigin.CONSTANT)
    assert tf.make_ndarray(permutation.source.attr["value"].tensor).tolist() == [1, 0]


def test_turns_of_a_loop_are_counted():
    def looped(x):
        return tf.while_loop(lambda i, _: i < 5, lambda i, x: (i + 1, x @ x), (tf.constant(0), x))[1]

    product = ran(looped, floats(8, 8))["MatMul"]
    assert product.turns == 5


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("_MklNativeFusedConv2D", "Conv2D"),
        ("_MklNativeConv2DWithBias", "Conv2D"),
        ("_MklNativePadWithConv2D", "Conv2D"),
        ("_MklNativePadWithFusedConv2D", "Conv2D"),
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
    assert KernelRun("name", kernel, (), (), {}, 0.0, 0.0).type == kind


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


@pytest.mark.parametrize(("seconds", "runs"), [(0.0, FEWEST_RUNS), (60.0, RUNS)])
def test_of_runs_that_last_long_fewer_are_made(seconds, runs, monkeypatch):
    made = []
    traced_run = Session.traced

    def counted(session, *arguments):
        made.append(1)
        return traced_run(session, *arguments)

    monkeypatch.setattr(traced, "SECONDS", seconds)
    monkeypatch.setattr(Session, "traced", counted)
    concrete = tf.function(tf.sqrt).get_concrete_function(tf.constant(np.ones(4, "float32")))
    with Traced(concrete, [np.ones(4, "float32")]) as looked_into:
        (root,) = [one for one in looked_into.operations() if one.type == "Sqrt"]
    assert len(made) == runs
    assert root.turns == 1
