"""A convolution by Winograd's method and its gradients are those of TensorFlow."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tests.fixtures.amx import SIDE
from tests.fixtures.layers import check_equal, random_inputs, whole_numbers
from tfperf.training import SwappedConv2D, convolve, winograd
from tfperf.training.winograd import can_be_by_winograd, convolve_by_winograd
from tfperf.training.within_xla import with_native_layers
from tfperf.training.xla_function import can_be_compiled

MEASURED = winograd.is_faster_in

pytestmark = pytest.mark.skipif(not can_be_compiled(), reason="needs a C++ compiler, and no GPU")


@pytest.fixture(autouse=True, scope="module")
def everywhere():
    """On any processor, for any number of channels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(winograd, "is_faster_in", lambda dtype: True)
        patch.setattr(winograd, "FEWEST_CHANNELS", 1)
        patch.setattr(winograd, "FEWEST_PLACES", 1)
        assert takes((1, 3, 3, 1), (3, 3, 1, 1))
        yield


def takes(inputs, kernel, strides=(1, 1), padding="same", types=("float32", "float32")):
    specs = [tf.TensorSpec(shape, dtype) for shape, dtype in zip((inputs, kernel), types, strict=True)]
    return can_be_by_winograd(*specs, strides, padding)


def by_tensorflow(inputs, kernel, bias, padding):
    return tf.nn.bias_add(tf.nn.conv2d(inputs, kernel, 1, padding.upper()), bias)


def everything(convolution, padding, upstream, *operands):
    """Outputs, and the gradients of inputs, kernel and bias."""
    with tf.GradientTape() as tape:
        tape.watch(operands)
        outputs = convolution(*operands, padding)
    return [outputs, *tape.gradient(outputs, operands, upstream)]


def operands_of(batch, size, channels, filters, padding, dtype="float32"):
    """Whole numbers: upstream gradients, inputs, kernel and bias."""
    made = size if padding == "same" else [side - 2 for side in size]
    shapes = (batch, *made, filters), (batch, *size, channels), (3, 3, channels, filters), (filters,)
    return [tf.cast(one, dtype) for one in whole_numbers(*shapes)]


@given(
    batch=st.integers(0, 20),
    size=st.tuples(SIDE, SIDE),
    channels=st.integers(1, 40),
    filters=st.integers(1, 70),
    padding=st.sampled_from(["same", "valid"]),
    dtype=st.sampled_from(["float32", "bfloat16"]),
)
@example(70, (4, 4), 260, 520, "same", "float32")  # filters are taken in parts, and shared by threads
@example(70, (4, 4), 261, 520, "same", "bfloat16")
@example(1, (4, 3), 520, 540, "same", "bfloat16")  # sums of a kernel's gradient are too
@example(60, (9, 8), 33, 30, "valid", "float32")  # tiles are shared
@example(60, (9, 7), 33, 31, "valid", "bfloat16")
@example(1, (70, 131), 36, 6, "valid", "float32")
@example(3, (1, 2), 5, 7, "same", "float32")  # the kernel is larger
@settings(max_examples=80, deadline=None)
def test_it_is_tensorflow_s_for_any_shape(batch, size, channels, filters, padding, dtype):
    """To the last bit: of such whole numbers all transforms and sums are exact."""
    assume(padding == "same" or min(size) >= 3)
    operands = operands_of(batch, size, channels, filters, padding, dtype)
    found = everything(convolve_by_winograd, padding, *operands)
    exact = everything(by_tensorflow, padding, *(tf.cast(one, tf.float64) for one in operands))
    if dtype == "bfloat16":  # in which TensorFlow sums the bias's gradient
        found, exact = found[:3], [tf.cast(one, dtype) for one in exact[:3]]
    for ours, right in zip(found, exact, strict=True):
        assert ours.dtype == dtype
        np.testing.assert_array_equal(tf.cast(ours, tf.float64), tf.cast(right, tf.float64))


@pytest.mark.parametrize(("dtype", "most"), [("float32", 2e-6), ("bfloat16", 1e-2)])
@pytest.mark.parametrize("channels", [16, 600])
def test_numbers_of_any_size_are_rounded_little(channels, dtype, most):
    shapes = (4, 9, 9, 24), (4, 9, 9, channels), (3, 3, channels, 24), (24,)
    operands = [tf.cast(np.random.default_rng(0).normal(size=shape), dtype) for shape in shapes]
    found = everything(convolve_by_winograd, "same", *operands)
    exact = everything(by_tensorflow, "same", *(tf.cast(one, tf.float64) for one in operands))
    for ours, right in zip(found, exact, strict=True):
        assert np.abs(tf.cast(ours, tf.float64) - right).max() < most * np.abs(right).max()


@pytest.mark.parametrize("jit_compile", [None, True])
def test_the_batch_need_not_be_known_and_xla_may_compile_it(jit_compile):
    upstream, inputs, *others = operands_of(9, (8, 7), 5, 6, "same")
    signature = None if jit_compile else [tf.TensorSpec([None, *one.shape[1:]]) for one in (upstream, inputs)]

    @tf.function(input_signature=signature, jit_compile=jit_compile, autograph=False)
    def traced(upstream, inputs):
        return everything(convolve_by_winograd, "same", upstream, inputs, *others)

    for ours, right in zip(
        traced(upstream, inputs), everything(by_tensorflow, "same", upstream, inputs, *others), strict=True
    ):
        np.testing.assert_array_equal(ours, right)


def by_convolve(inputs, kernel, bias, padding):
    return convolve(inputs, kernel, bias, padding=padding)


@pytest.mark.parametrize("function", [convolve_by_winograd, by_convolve])
@pytest.mark.parametrize("of", [0, 1, 2], ids=["inputs", "kernel", "bias"])
def test_gradients_of_its_gradients_are_those_of_a_convolution(function, of):
    def penalty(convolution):
        with tf.GradientTape() as outer:
            outer.watch(operands)
            with tf.GradientTape() as inner:
                inner.watch(operands)
                total = tf.reduce_sum(convolution(*operands, "valid") ** 2)
            size = tf.reduce_sum(inner.gradient(total, operands[of]) ** 2)
        return outer.gradient(size, operands)

    _, *operands = operands_of(4, (6, 5), 3, 4, "valid")
    for ours, right in zip(penalty(function), penalty(by_tensorflow), strict=True):
        np.testing.assert_allclose(ours, right, rtol=1e-5, atol=1e-3)


def test_what_is_no_number_stays_with_its_image_and_the_places_around_it():
    _, inputs, *others = operands_of(2, (6, 6), 40, 40, "same")
    broken = np.array(inputs)
    broken[1, 3, 3, 7] = np.nan
    found = np.isnan(convolve_by_winograd(tf.constant(broken), *others, "same"))
    assert found[1, 2:5, 2:5].all()
    found[1, 2:5, 2:5] = False
    assert not found.any()


def calls_of(function, *operands):
    """How many functions in C++ a graph calls."""
    graph = tf.function(function, autograph=False).get_concrete_function(*operands).graph.as_graph_def()
    nodes = [*graph.node, *(node for one in graph.library.function for node in one.node_def)]
    return sum(node.op == "XlaCallModule" for node in nodes)


def test_convolve_has_those_gradients_that_are_asked_for_and_no_c_where_no_tape_sees_it():
    _, inputs, kernel, bias = operands_of(4, (9, 9), 8, 16, "same")

    def trained(inputs, kernel, *, images=False):
        with tf.GradientTape() as tape:
            tape.watch([kernel] if images else [inputs, kernel])
            outputs = convolve(inputs, kernel, bias, padding="same")
        return tape.gradient(outputs, [inputs, kernel])

    assert calls_of(trained, inputs, kernel) == 3
    assert calls_of(functools.partial(trained, images=True), inputs, kernel) == 2
    assert calls_of(lambda *given: convolve(*given, padding="same"), inputs, kernel) == 0


@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
@pytest.mark.parametrize("use_bias", [True, False])
def test_a_layer_of_it_is_keras_s_and_within_xla_too(use_bias, activation, monkeypatch):
    keras.utils.set_random_seed(0)
    options = {"use_bias": use_bias, "bias_initializer": "normal", "activation": activation, "padding": "same"}
    layer, inputs = keras.layers.Conv2D(20, 3, **options), random_inputs([3, 9, 7, 17], "float32")
    layer.build(inputs.shape)
    check_equal(layer, SwappedConv2D, inputs, "float32", training=True)
    model = keras.Sequential([keras.Input(inputs.shape[1:]), keras.layers.Conv2D(20, 3, **options)])

    def step(inputs):
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(model(inputs, training=True) ** 3)
        return tape.gradient(total, [one.value for one in model.trainable_variables])

    def native(inputs):
        with with_native_layers(model):
            return step(inputs)

    monkeypatch.setattr("tfperf.training.within_xla.can_convolve_directly", lambda *_: False)
    found = [tf.function(one, jit_compile=True, autograph=False)(inputs) for one in (step, native)]
    assert calls_of(native, inputs) == (5 if activation == "gelu" else 3)  # which is C++ too, forward and backward
    for plain, ours in zip(*found, strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-5 * np.abs(plain).max())


@pytest.mark.parametrize(
    ("inputs", "kernel", "options"),
    [
        ((1, 9, 9, 2), (3, 3, 2, 4), {"strides": (2, 1)}),
        ((1, 9, 9, 2), (3, 3, 2, 4), {"types": ("float64", "float64")}),
        ((1, 9, 9, 2), (3, 3, 2, 4), {"types": ("bfloat16", "float32")}),
        ((1, 9, 9, 2), (3, 3, 2, 4), {"padding": "causal"}),
        ((1, 9, 9, 2), (3, 1, 2, 4), {}),
        ((1, 9, 9, 2), (5, 5, 2, 4), {}),
        ((1, 2, 9, 2), (3, 3, 2, 4), {"padding": "valid"}),
        ((1, 9, 9, 4), (3, 3, 2, 4), {}),
        ((1, 9, None, 2), (3, 3, 2, 4), {}),
    ],
)
def test_what_is_none_of_its(inputs, kernel, options):
    assert not takes(inputs, kernel, **options)


def test_few_channels_and_places_are_none_of_its(monkeypatch):
    monkeypatch.setattr(winograd, "FEWEST_CHANNELS", 16)
    monkeypatch.setattr(winograd, "FEWEST_PLACES", 2)
    assert takes((1, 9, 9, 16), (3, 3, 16, 16))
    assert not takes((1, 9, 9, 15), (3, 3, 15, 16))
    assert not takes((1, 9, 9, 16), (3, 3, 16, 15))
    assert not takes((1, 3, 9, 16), (3, 3, 16, 16), padding="valid")


@pytest.mark.parametrize(
    ("level", "pairs", "has_amx", "types"),
    [
        ("x86-64-v2", False, False, ()),
        ("x86-64-v3", False, False, ("float32",)),
        ("x86-64-v4", False, False, ("float32",)),
        ("x86-64-v4", True, False, ("float32", "bfloat16")),
        ("x86-64-v4", False, True, ()),
    ],
)
def test_processors_on_which_it_was_not_measured_have_it_not(level, pairs, has_amx, types, monkeypatch):
    monkeypatch.setattr(winograd, "level_of_cpu", lambda: level)
    monkeypatch.setattr(winograd, "multiplies_pairs", lambda: pairs)
    monkeypatch.setattr(winograd, "has_amx", lambda: has_amx)
    assert tuple(one for one in ("float32", "bfloat16") if MEASURED(one)) == types
