"""What a kernel should take, from a machine made up of round numbers."""

import numpy as np
import pytest
import tensorflow as tf

from tfperf.errors import HardwareError
from tfperf.hardware.ceilings import Bandwidth, CallCost, Ceilings, ProductRate
from tfperf.hardware.kernels.prediction import Prediction
from tfperf.hardware.kernels.ran import Traced
from tfperf.hardware.kernels.rates import KernelRates
from tfperf.hardware.kernels.roofline import Bound

DISPATCH, START, EACH = 1e-6, 2e-6, 1e-9


@pytest.fixture
def ceilings(environment):
    return Ceilings(
        environment=environment,
        products=(ProductRate(dtype="float32", threads=2, size=1024, flops_per_second=1e11),),
        convolutions=(),
        bandwidths=tuple(
            Bandwidth(threads=2, working_set=2**20, bytes_per_second=rate, kind=kind)
            for kind, rate in (("pointwise", 1e10), ("weights", 2e10))
        ),
        calls=(CallCost(name="graph op", seconds=DISPATCH),),
        disk_read_bytes_per_second=None,
        loopback_seconds=None,
        loopback_bytes_per_second=None,
    )


@pytest.fixture
def prediction(ceilings, tmp_path):
    return Prediction(ceilings, KernelRates(2, tmp_path, measure=lambda _, sizes: START + EACH * sizes[0]))


def ran(function, *arrays):
    concrete = tf.function(function).get_concrete_function(*[tf.constant(array) for array in arrays])
    with Traced(concrete, arrays, rewritten=False) as traced:
        return {one.type: one for one in traced.operations(runs=1)}


def test_a_kind_that_can_be_measured_takes_what_was_measured(prediction):
    cost = prediction.cost(ran(lambda x: x + x, np.ones(4**8, "float32"))["AddV2"])
    assert cost.seconds == pytest.approx(START + EACH * 4**8)
    assert cost.start == pytest.approx(START + EACH * 16)
    assert cost.traffic == pytest.approx(2 * 4 * 4**8 / 1e10)  # the one it takes is read once
    assert cost.compute == pytest.approx(4**8 / 1e11)
    assert cost.bound is Bound.BANDWIDTH


def test_of_others_the_roofline_is_told(prediction):
    operation = ran(lambda x: tf.gather(x, tf.zeros([1000], tf.int32)), np.ones((10, 1000), "float32"))["GatherV2"]
    cost = prediction.cost(operation)
    assert cost.start == DISPATCH
    assert cost.seconds == pytest.approx(max(cost.compute, cost.traffic) + DISPATCH)
    assert cost.traffic >= 4_000_000 / 1e10


def test_without_kernels_all_are_told_by_the_roofline(prediction):
    product = ran(lambda x: x @ x, np.ones((64, 64), "float32"))["MatMul"]
    cost = prediction.cost(product, by_kernels=False)
    assert prediction.rates.known == {}
    assert cost.compute == pytest.approx(2 * 64**3 / 1e11)
    assert cost.traffic == pytest.approx(2 * 4 * 64**2 / 2e10)


def test_what_only_hands_on_costs_nothing(prediction):
    variable = tf.Variable(np.ones(5, "float32"))
    found = ran(lambda x: tf.reshape(x, [5]) + variable, np.ones((5, 1), "float32"))
    for kind in ("Reshape", "ReadVariableOp", "VarHandleOp"):
        assert prediction.cost(found[kind]).seconds == 0
        assert prediction.work(found[kind]).operations == 0


def test_what_a_fused_kernel_does_beside_its_product_is_counted(prediction):
    weights, bias = tf.Variable(np.ones((8, 4), "float32")), tf.Variable(np.ones(4, "float32"))
    concrete = tf.function(lambda x: tf.nn.bias_add(x @ weights, bias)).get_concrete_function(tf.ones([2, 8]))
    with Traced(concrete, [np.ones((2, 8), "float32")]) as traced:
        (product,) = [one for one in traced.operations(runs=1) if one.type == "MatMul"]
    work = prediction.work(product)
    assert (work.products, work.flops) == (2 * 2 * 8 * 4, 2 * 2 * 8 * 4 + 2 * 4)


def test_threads_that_were_not_measured_are_refused(ceilings, tmp_path):
    with pytest.raises(HardwareError, match="3 threads"):
        Prediction(ceilings, KernelRates(3, tmp_path))
