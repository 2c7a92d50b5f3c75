"""Kernels' times: measured until two agree, kept by what decides them, and told again."""

import numpy as np
import pytest
import tensorflow as tf

from tfperf.hardware.kernels.alone import Among
from tfperf.hardware.kernels.times import KernelTimes, name_of
from tfperf.hardware.kernels.traced import Traced

MEMORY = Among(2**20)


def ran(function, *shapes):
    arrays = [np.ones(shape, "float32") for shape in shapes]
    concrete = tf.function(function).get_concrete_function(*[tf.constant(array) for array in arrays])
    with Traced(concrete, arrays, rewritten=False) as traced:
        return {one.type: one for one in traced.operations(runs=1)}


@pytest.fixture(scope="module")
def root():
    return ran(tf.sqrt, (8, 4))["Sqrt"]


def answers(*seconds):
    """A measurement that says these, one after the other."""
    listed = iter(seconds)
    return lambda *_: next(listed)


def refuse(*_):
    raise AssertionError("measured again")


def test_the_shorter_of_two_that_agree_is_told(root, tmp_path):
    times = KernelTimes(2, tmp_path, answers(9e-6, 5.2e-6, 5e-6))
    assert times.alone(root, MEMORY) == 5e-6
    assert times.unsure == 0
    assert times.alone(root, MEMORY) == 5e-6  # no fourth is asked for


def test_what_no_two_agree_on_is_told_and_not_kept(root, tmp_path):
    times = KernelTimes(2, tmp_path, answers(4e-6, 5e-6, 6e-6, 7e-6))
    assert times.alone(root, MEMORY) == 4e-6
    assert times.unsure == 1
    times.keep()
    assert list(tmp_path.iterdir()) == []


def test_what_was_measured_is_kept(root, tmp_path):
    times = KernelTimes(2, tmp_path, answers(4e-6, 4e-6))
    times.alone(root, MEMORY)
    times.keep()
    assert KernelTimes(2, tmp_path, refuse).alone(root, MEMORY) == 4e-6
    assert KernelTimes(1, tmp_path, refuse).known == {}  # other threads, other times
    assert KernelTimes(2, tmp_path, refuse, fresh=True).known == {}


def test_kernels_are_measured_in_passes_over_all_of_them(root, tmp_path):
    """And again only those of which no two measurements agree."""
    other = ran(tf.exp, (8, 4))["Exp"]
    seconds, asked = {"Sqrt": iter([5e-6, 5e-6]), "Exp": iter([9e-6, 4e-6, 4.1e-6])}, []

    def measure(operation, _):
        asked.append(operation.type)
        return next(seconds[operation.type])

    times = KernelTimes(2, tmp_path, measure)
    times.learn([(root, MEMORY), (other, MEMORY)], lambda: asked.append("pass"))
    assert asked == ["Sqrt", "Exp", "pass", "Sqrt", "Exp", "pass", "Exp", "pass"]
    assert (times.alone(root, MEMORY), times.alone(other, MEMORY)) == (5e-6, 4e-6)
    times.learn([(root, MEMORY)], lambda: asked.append("known"))
    assert asked[8:] == ["known"]


def test_a_small_share_is_measured_twice_only(root, tmp_path):
    other = ran(tf.exp, (8, 4))["Exp"]
    seconds = {"Sqrt": iter([1e-3, 2e-3, 1.05e-3]), "Exp": iter([9e-6, 4e-6])}
    times = KernelTimes(2, tmp_path, lambda operation, _: next(seconds[operation.type]))
    times.learn([(root, MEMORY), (other, MEMORY)])
    assert (times.alone(root, MEMORY), times.alone(other, MEMORY)) == (1e-3, 4e-6)
    assert times.unsure == 1


def test_what_cannot_be_measured_is_asked_for_once(root, tmp_path):
    asked = []

    def fail(*_):
        asked.append(1)
        raise tf.errors.InvalidArgumentError(None, None, "no")

    times = KernelTimes(2, tmp_path, fail)
    assert times.alone(root, MEMORY) is None
    assert times.alone(root, MEMORY) is None
    assert len(asked) == 1
    assert times.unsure == 0


def test_it_says_what_it_measures(root, tmp_path):
    told = []
    KernelTimes(2, tmp_path, answers(1e-6, 1e-6), tell=told.append).alone(root, MEMORY)
    again = "measuring kernels again of which no two measurements agree: 1"
    assert told == ["measuring Sqrt 8x4:float32 beside 1024 KiB", again]


def test_whatever_decides_a_time_is_in_the_name(root):
    weights = tf.Variable(np.ones((4, 4), "float32"))
    product = ran(lambda x: x @ weights, (8, 4))["MatMul"]
    others = [
        ran(lambda x, y: x @ y, (8, 4), (4, 4))["MatMul"],  # what was weights is given
        ran(lambda x: tf.matmul(x, weights, transpose_b=True), (8, 4))["MatMul"],
        ran(lambda x: x @ weights, (16, 4))["MatMul"],
        root,
    ]
    names = {name_of(one, MEMORY) for one in (product, *others)}
    assert len(names) == 5
    assert name_of(product, Among(2**21)) not in names
    assert name_of(product, Among(2**20, first=True)) not in names
    assert name_of(product._replace(name="elsewhere", seconds=9.0), MEMORY) in names
    last, first = (
        ran(lambda x, order=order: tf.transpose(x, order), (2, 3, 4))["Transpose"] for order in ([0, 2, 1], [2, 1, 0])
    )
    assert name_of(last, MEMORY) != name_of(first, MEMORY)


def test_functions_that_xla_compiles_are_known_by_what_they_do(tmp_path):
    kernels = [tf.Variable(np.full((3, 3, 1, 4), value, "float32")) for value in (1, 2)]

    def compiled(number, groups=4):
        @tf.function(jit_compile=True)
        def convolve(x):
            return tf.nn.depthwise_conv2d(x, tf.reshape(kernels[number], [3, 3, groups, 4 // groups]), [1] * 4, "SAME")

        return convolve

    def net(x):
        return compiled(1)(compiled(0)(x + 1.0) * 2.0), compiled(0, groups=1)(x[..., :1])

    array = np.ones((1, 8, 8, 4), "float32")
    with Traced(tf.function(net).get_concrete_function(tf.constant(array)), [array]) as traced:
        calls = [one for one in traced.operations(runs=1) if one.compiled]
    wide = [call for call in calls if any(spec.shape[-1:] == [4] for spec in call.inputs)]
    assert (len(calls), len(wide)) == (3, 2)
    work = wide[0].compiled.work
    assert work.products == work.flops == 2 * 8 * 8 * 4 * 9
    assert (work.read, work.written) == (4 * (8 * 8 * 4 + 3 * 3 * 4), 4 * 8 * 8 * 4)
    assert len({name_of(call, MEMORY) for call in wide}) == 1  # two layers of one kind
    assert len({name_of(call, MEMORY) for call in calls}) == 2  # and another
    assert KernelTimes(2, tmp_path).alone(wide[0], MEMORY) > 0
