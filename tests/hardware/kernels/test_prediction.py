"""What a kernel should take, from a machine made up of round numbers."""

import numpy as np
import pytest
import tensorflow as tf

from tfperf.errors import HardwareError
from tfperf.hardware.ceilings import Bandwidth, CallCost, Ceilings, ProductRate
from tfperf.hardware.kernels.prediction import KernelPredictor, bytes_of_a_run
from tfperf.hardware.kernels.roofline import Bound
from tfperf.hardware.kernels.times import KernelTimes
from tfperf.hardware.kernels.traced import Traced

DISPATCH, EACH = 1e-6, 1e-9


@pytest.fixture
def ceilings(environment):
    return Ceilings(
        environment=environment,
        products=(ProductRate(dtype="float32", threads=2, size=1024, flops_per_second=1e11),),
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
def asked():
    """The kernels whose times were asked for, each with its place."""
    return []


@pytest.fixture
def prediction(ceilings, tmp_path, asked):
    """Each kernel takes a nanosecond for each number that it gives."""

    def measure(operation, among):
        asked.append((operation.type, among))
        return EACH * operation.outputs[0].shape.num_elements()

    return KernelPredictor(ceilings, KernelTimes(2, tmp_path, measure))


def ran(function, *arrays, rewritten=False):
    concrete = tf.function(function).get_concrete_function(*[tf.constant(array) for array in arrays])
    with Traced(concrete, arrays, rewritten=rewritten) as traced:
        return list(map(in_made_up_seconds, traced.operations(runs=1)))


def in_made_up_seconds(operation):
    """The operation, with seconds that rise with the largest tensor that it takes and not with what disturbed it."""
    numbers = max((spec.shape.num_elements() for spec in operation.inputs), default=0)
    return operation._replace(seconds=1e-6 * (1 + numbers / 2**16))


def of_type(operations, kind):
    (found,) = [one for one in operations if one.type == kind]
    return found


def test_a_kernel_takes_what_it_takes_by_itself(prediction):
    numbers = 2**16
    (cost,) = prediction.costs([of_type(ran(lambda x: x + x, np.ones(numbers, "float32")), "AddV2")])
    assert cost.seconds == pytest.approx(EACH * numbers)
    assert cost.start == DISPATCH
    assert cost.traffic == pytest.approx(2 * 4 * numbers / 1e10)  # the one it takes is read once
    assert cost.compute == pytest.approx(numbers / 1e11)


def test_the_start_is_no_longer_than_the_whole(prediction):
    (cost,) = prediction.costs([of_type(ran(tf.sqrt, np.ones(10, "float32")), "Sqrt")])
    assert cost.seconds == cost.start == pytest.approx(10 * EACH)


def test_what_the_others_touch_lies_between_two_runs_of_a_kernel(prediction, asked):
    large, small = tf.Variable(np.ones((256, 1024), "float32")), tf.Variable(np.ones((1024, 16), "float32"))
    operations = ran(lambda x: tf.sqrt(x @ large @ small), np.ones((1, 256), "float32"))
    prediction.costs(operations)
    besides = [among.beside for kind, among in asked if kind == "MatMul"]
    assert besides == [2**16, 2**20] * 2  # beside 1 MiB of weights there are 64 KiB, and the other way round


def test_the_first_that_works_wakes_the_threads(prediction, asked):
    weights = tf.Variable(np.ones((256, 256), "float32"))
    prediction.costs(ran(lambda x: tf.sqrt(tf.reshape(x, [1, 256]) @ weights), np.ones((16, 16), "float32")))
    assert [(kind, among.first) for kind, among in asked] == [("MatMul", True), ("Sqrt", False)] * 2


def test_the_smallest_are_not_measured(prediction, asked):
    operations = ran(lambda x: tf.sqrt(x + x), np.ones(2**16, "float32"))
    small = of_type(operations, "Sqrt")._replace(seconds=1e-8)
    operations = [small if one.name == small.name else one for one in operations]
    costs = dict(zip([one.type for one in operations], prediction.costs(operations), strict=True))
    assert {kind for kind, _ in asked} == {"AddV2"}
    assert costs["Sqrt"] == prediction.roofline(small)


def test_a_loop_takes_its_turns(prediction):
    once = of_type(ran(tf.sqrt, np.ones(10_000, "float32")), "Sqrt")
    (alone,), (turned,) = prediction.costs([once]), prediction.costs([once._replace(turns=5.0)])
    assert turned == pytest.approx(tuple(5 * part for part in alone))


def test_of_others_the_roofline_is_told(prediction):
    operation = of_type(ran(tf.strings.length, np.array(["a"] * 1000, dtype=object)), "StringLength")
    (cost,) = prediction.costs([operation])
    assert cost == prediction.roofline(operation)
    assert cost.start == DISPATCH
    assert cost.seconds == pytest.approx(max(cost.compute, cost.traffic) + DISPATCH)
    assert cost.traffic == pytest.approx(4_000 / 1e10)


def test_the_roofline_needs_no_kernel(prediction):
    cost = prediction.roofline(of_type(ran(lambda x: x @ x, np.ones((64, 64), "float32")), "MatMul"))
    assert prediction.times.known == {}
    assert cost.compute == pytest.approx(2 * 64**3 / 1e11)
    assert cost.traffic == pytest.approx(2 * 4 * 64**2 / 2e10)
    assert cost.bound is Bound.COMPUTE


def test_what_only_hands_on_costs_nothing(prediction):
    variable = tf.Variable(np.ones(5, "float32"))
    operations = ran(lambda x: tf.reshape(x, [5]) + variable, np.ones((5, 1), "float32"))
    for operation, cost in zip(operations, prediction.costs(operations), strict=True):
        if operation.type in ("Reshape", "ReadVariableOp", "VarHandleOp"):
            assert cost.seconds == 0
            assert prediction.work(operation).operations == 0


def test_what_a_fused_kernel_does_beside_its_product_is_counted(prediction):
    weights, bias = tf.Variable(np.ones((8, 4), "float32")), tf.Variable(np.ones(4, "float32"))
    function = lambda x: tf.nn.bias_add(x @ weights, bias)  # noqa: E731
    product = of_type(ran(function, np.ones((2, 8), "float32"), rewritten=True), "MatMul")
    work = prediction.work(product)
    assert (work.products, work.flops) == (2 * 2 * 8 * 4, 2 * 2 * 8 * 4 + 2 * 4)


def test_a_run_touches_its_weights_and_its_largest_operation():
    weights = tf.Variable(np.ones((256, 1024), "float32"))  # 1 MiB
    operations = ran(lambda x: x @ weights @ tf.transpose(weights), np.ones((64, 256), "float32"))
    sizes = [[4 * spec.shape.num_elements() for spec in (*one.inputs, *one.outputs)] for one in operations]
    whole = 2**20 + max(map(sum, sizes))
    assert 2**20 < bytes_of_a_run(operations) <= whole
    assert bytes_of_a_run([]) == 0
    few = operations[:1] * 3  # the same again is no more
    assert bytes_of_a_run(few) == bytes_of_a_run(few[:1])


def test_threads_that_were_not_measured_are_refused(ceilings, tmp_path):
    with pytest.raises(HardwareError, match="3 threads"):
        KernelPredictor(ceilings, KernelTimes(3, tmp_path))
