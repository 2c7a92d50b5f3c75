"""A convolution by AMX and its gradients are those of float32, rounded to bfloat16."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import assume, example

from tests.fixtures.amx import assert_rounded, for_convolutions
from tests.fixtures.layers import whole_numbers
from tfperf.training import convolution, convolve
from tfperf.training.amx_convolution import can_convolve, convolve_by_amx


@pytest.fixture(autouse=True)
def _compiled(amx):
    assert can_convolve(*whole_numbers((1, 3, 3, 1), (3, 3, 1, 1)), (1, 1), "same")


def convolved(inputs, kernel, padding, function):
    """Outputs, and the gradients of both, with small whole numbers upstream."""
    with tf.GradientTape() as tape:
        tape.watch([inputs, kernel])
        outputs = function(inputs, kernel, padding)
    _, upstream = whole_numbers(inputs.shape, outputs.shape)
    return [outputs, *tape.gradient(outputs, [inputs, kernel], tf.cast(upstream, outputs.dtype))]


def in_float32(inputs, kernel, padding):
    wide = [tf.cast(one, tf.float32) for one in (inputs, kernel)]
    return convolved(*wide, padding, lambda *given: tf.nn.conv2d(*given[:2], 1, padding.upper()))


@for_convolutions
@example(batch=90, size=(4, 4), channels=260, filters=520, kernel=(3, 3), padding="same")  # two passes for each thread
@example(batch=2, size=(90, 80), channels=5, filters=6, kernel=(4, 3), padding="same")  # images are taken by rows
@example(batch=1, size=(70, 130), channels=36, filters=6, kernel=(3, 2), padding="valid")
@example(batch=3, size=(2, 1), channels=5, filters=7, kernel=(5, 4), padding="same")  # the kernel is larger
@example(batch=0, size=(5, 5), channels=4, filters=4, kernel=(3, 3), padding="same")
def test_it_is_that_of_float32_for_any_shape(batch, size, channels, filters, kernel, padding):
    assume(padding == "same" or all(side >= width for side, width in zip(size, kernel, strict=True)))
    inputs, weights = whole_numbers((batch, *size, channels), (*kernel, channels, filters))
    found = convolved(inputs, weights, padding, convolve_by_amx)
    for ours, exact in zip(found, in_float32(inputs, weights, padding), strict=True):
        assert_rounded(ours, exact)


def test_the_batch_need_not_be_known_and_xla_may_compile_it():
    inputs, kernel = whole_numbers((9, 8, 7, 5), (3, 2, 5, 6))
    exact = in_float32(inputs, kernel, "same")
    specs = [tf.TensorSpec([None, 8, 7, 5], tf.bfloat16), tf.TensorSpec(kernel.shape, tf.bfloat16)]

    def everything(inputs, kernel):
        with tf.GradientTape() as tape:
            tape.watch([inputs, kernel])
            outputs = convolve_by_amx(inputs, kernel, "same")
        return [outputs, *tape.gradient(outputs, [inputs, kernel], upstream[: tf.shape(inputs)[0]])]

    _, upstream = whole_numbers(inputs.shape, (9, 8, 7, 6))
    for traced in (
        tf.function(everything, input_signature=specs),
        tf.function(everything, jit_compile=True, autograph=False),
    ):
        for ours, right in zip(traced(inputs, kernel), exact, strict=True):
            assert_rounded(ours, right)


@pytest.mark.parametrize("of", [0, 1], ids=["inputs", "kernel"])
def test_gradients_of_its_gradients_are_those_of_a_convolution(of):
    def penalty(operands, function):
        with tf.GradientTape() as outer:
            outer.watch(operands)
            with tf.GradientTape() as inner:
                inner.watch(operands)
                total = tf.reduce_sum(function(*operands) ** 2)
            size = tf.reduce_sum(inner.gradient(total, operands[of]) ** 2)
        return [np.asarray(tf.cast(one, tf.float32)) for one in outer.gradient(size, operands)]

    operands = whole_numbers((4, 6, 5, 3), (3, 3, 3, 4))
    found = penalty(operands, lambda *given: convolve_by_amx(*given, "valid"))
    wide = tuple(tf.cast(one, tf.float32) for one in operands)
    exact = penalty(wide, lambda *given: tf.nn.conv2d(*given, 1, "VALID"))
    for ours, right in zip(found, exact, strict=True):
        assert np.abs(ours - right).max() <= 2**-6 * np.abs(right).max()


def test_what_is_no_number_stays_with_its_image_and_the_places_around_it():
    inputs, kernel = whole_numbers((2, 6, 6, 40), (3, 3, 40, 40))
    broken = np.array(inputs)
    broken[1, 3, 3, 7] = np.nan
    found = np.isnan(np.asarray(convolve_by_amx(tf.constant(broken), kernel, "same"), "float32"))
    assert found[1, 2:5, 2:5].all()
    found[1, 2:5, 2:5] = False
    assert not found.any()


@pytest.mark.parametrize(("channels", "taken"), [(128, True), (96, False)])
def test_many_weights_are_computed_by_it_in_training_alone(channels, taken, monkeypatch):
    calls = []
    monkeypatch.setattr(convolution, "convolve_by_amx", lambda *given: calls.append(1) or convolve_by_amx(*given))
    inputs, kernel = whole_numbers((30, 6, 6, channels), (3, 3, channels, 1_000))
    bias = tf.ones([1_000], tf.bfloat16)
    upstream = tf.cast(np.random.default_rng(0).uniform(size=[30, 6, 6, 1_000]), tf.bfloat16)
    convolve(inputs, kernel, bias, padding="same")
    with tf.GradientTape() as tape:
        tape.watch(bias)
        convolve(inputs, kernel, bias, padding="same", training=False)
        assert not calls  # what nobody differentiates may be exported
        outputs = convolve(inputs, kernel, bias, padding="same")
    assert bool(calls) == taken
    exact = in_float32(inputs, kernel, "same")[0] + 1
    assert np.abs(np.asarray(outputs, "float32") - exact).max() <= 2**-6 * np.abs(exact).max()
    total = np.asarray(upstream, "float64").sum((0, 1, 2))
    np.testing.assert_allclose(np.asarray(tape.gradient(outputs, bias, upstream), "float64"), total, rtol=2**-8)


def test_a_variable_of_keras_s_may_be_the_kernel():
    variable = keras.Variable(np.ones([3, 3, 128, 1_000]), dtype="bfloat16")
    inputs = tf.ones([2, 4, 4, 128], tf.bfloat16)
    with tf.GradientTape() as tape:
        outputs = convolve(inputs, variable, padding="same")
    gradient = tape.gradient(outputs, variable.value)
    assert float(gradient[1, 1, 0, 0]) == 32
    assert float(gradient[0, 0, 0, 0]) == 18


@pytest.mark.parametrize(
    ("inputs", "kernel", "strides", "padding", "types"),
    [
        ((9, 9, 2), (3, 3, 2, 4), (2, 1), "same", ("bfloat16", "bfloat16")),
        ((9, 9, 2), (3, 3, 2, 4), (1, 1), "same", ("float32", "float32")),
        ((9, 9, 2), (3, 3, 2, 4), (1, 1), "same", ("bfloat16", "float32")),
        ((2, 9, 2), (3, 3, 2, 4), (1, 1), "valid", ("bfloat16", "bfloat16")),
        ((9, 9, 2), (3, 3, 2, 4), (1, 1), "causal", ("bfloat16", "bfloat16")),
        ((9, 9, 4), (3, 3, 2, 4), (1, 1), "same", ("bfloat16", "bfloat16")),
        ((9, 9, 2), (3, 3, 2, 0), (1, 1), "same", ("bfloat16", "bfloat16")),
        ((9, None, 2), (3, 3, 2, 4), (1, 1), "same", ("bfloat16", "bfloat16")),
        ((9, 9, 2), (3, 3, None, None), (1, 1), "same", ("bfloat16", "bfloat16")),
    ],
)
def test_what_is_none_of_its(inputs, kernel, strides, padding, types):
    specs = [tf.TensorSpec(shape, dtype) for shape, dtype in zip(((1, *inputs), kernel), types, strict=True)]
    assert not can_convolve(*specs, strides, padding)
