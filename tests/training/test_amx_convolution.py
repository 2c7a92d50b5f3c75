"""A convolution by AMX and its gradients are those of float32, rounded to bfloat16."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tests.fixtures.amx import assert_rounded, by_amx
from tests.fixtures.layers import whole_numbers
from tfperf.training import convolution, convolve
from tfperf.training.amx_convolution import can_convolve, convolve_by_amx

pytestmark = by_amx


@pytest.fixture(autouse=True, scope="module")
def _compiled():
    assert can_convolve(tf.zeros([1, 3, 3, 1], tf.bfloat16), (3, 3), (1, 1))


def convolved(inputs, kernel, padding, function):
    """Outputs, and the gradients of both, with small whole numbers upstream."""
    with tf.GradientTape() as tape:
        tape.watch([inputs, kernel])
        outputs = function(inputs, kernel, padding)
    (upstream,) = whole_numbers(outputs.shape)
    return [outputs, *tape.gradient(outputs, [inputs, kernel], tf.cast(upstream, outputs.dtype))]


def in_float32(inputs, kernel, padding):
    wide = [tf.cast(one, tf.float32) for one in (inputs, kernel)]
    return convolved(*wide, padding, lambda *given: tf.nn.conv2d(*given[:2], 1, padding.upper()))


SIDE = st.integers(1, 18)


@settings(max_examples=60, deadline=None)
@given(
    batch=st.integers(1, 40),
    size=st.tuples(SIDE, SIDE),
    channels=st.integers(1, 70),
    filters=st.integers(1, 70),
    kernel=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    padding=st.sampled_from(["same", "valid"]),
)
@example(batch=50, size=(7, 7), channels=64, filters=32, kernel=(3, 3), padding="same")  # several passes for a thread
@example(batch=9, size=(4, 4), channels=260, filters=520, kernel=(3, 3), padding="same")  # a thread's kernel is large
@example(batch=2, size=(90, 80), channels=5, filters=6, kernel=(4, 3), padding="same")  # images are taken by rows
@example(batch=1, size=(70, 130), channels=36, filters=6, kernel=(3, 2), padding="valid")
@example(batch=0, size=(5, 5), channels=4, filters=4, kernel=(3, 3), padding="same")
def test_it_is_that_of_float32_for_any_shape(batch, size, channels, filters, kernel, padding):
    assume(all(side >= width for side, width in zip(size, kernel, strict=True)))
    inputs, weights = whole_numbers((batch, *size, channels), (*kernel, channels, filters))
    found = convolved(inputs, weights, padding, convolve_by_amx)
    for ours, exact in zip(found, in_float32(inputs, weights, padding), strict=True):
        assert_rounded(ours, exact)


def test_the_batch_need_not_be_known_and_xla_may_compile_it():
    inputs, kernel = whole_numbers((9, 8, 7, 5), (3, 2, 5, 6))
    exact = in_float32(inputs, kernel, "same")
    specs = [tf.TensorSpec([None, 8, 7, 5], tf.bfloat16), tf.TensorSpec(kernel.shape, tf.bfloat16)]

    def outputs(*given):
        return convolve_by_amx(*given, "same")

    assert_rounded(tf.function(outputs, input_signature=specs)(inputs, kernel), exact[0])
    assert_rounded(tf.function(outputs, jit_compile=True, autograph=False)(inputs, kernel), exact[0])


def test_gradients_of_its_gradients_are_those_of_a_convolution():
    def penalty(inputs, kernel, function):
        with tf.GradientTape() as outer:
            outer.watch(kernel)
            with tf.GradientTape() as inner:
                inner.watch(inputs)
                total = tf.reduce_sum(function(inputs, kernel) ** 2)
            size = tf.reduce_sum(inner.gradient(total, inputs) ** 2)
        return np.asarray(tf.cast(outer.gradient(size, kernel), tf.float32))

    inputs, kernel = whole_numbers((4, 6, 5, 3), (3, 3, 3, 4))
    found = penalty(inputs, kernel, lambda *given: convolve_by_amx(*given, "valid"))
    wide = [tf.cast(one, tf.float32) for one in (inputs, kernel)]
    exact = penalty(*wide, lambda *given: tf.nn.conv2d(*given, 1, "VALID"))
    assert np.abs(found - exact).max() <= 2**-6 * np.abs(exact).max()


def test_what_is_no_number_stays_with_its_image_and_the_places_around_it():
    inputs, kernel = whole_numbers((2, 6, 6, 40), (3, 3, 40, 40))
    broken = np.array(inputs)
    broken[1, 3, 3, 7] = np.nan
    found = np.isnan(np.asarray(convolve_by_amx(tf.constant(broken), kernel, "same"), "float32"))
    assert found[1, 2:5, 2:5].all()
    found[1, 2:5, 2:5] = False
    assert not found.any()


@pytest.mark.parametrize(("channels", "taken"), [(128, True), (96, False)])
@pytest.mark.parametrize("training", [True, False])
def test_a_layer_of_many_weights_is_computed_by_it_in_training(channels, taken, training, monkeypatch):
    calls = []
    monkeypatch.setattr(convolution, "convolve_by_amx", lambda *given: calls.append(1) or convolve_by_amx(*given))
    inputs, kernel = whole_numbers((3, 4, 4, channels), (3, 3, channels, 1000))
    bias = tf.ones([1000], tf.bfloat16)
    outputs = convolve(inputs, kernel, bias, padding="same", training=training)
    assert bool(calls) == (taken and training)
    exact = in_float32(inputs, kernel, "same")[0] + 1
    assert np.abs(np.asarray(outputs, "float32") - exact).max() <= 2**-6 * np.abs(exact).max()


@pytest.mark.parametrize(
    ("size", "kernel", "strides", "dtype"),
    [((9, 9), (3, 3), (2, 1), "bfloat16"), ((9, 9), (3, 3), (1, 1), "float32"), ((2, 9), (3, 3), (1, 1), "bfloat16")],
)
def test_strides_another_type_and_kernels_larger_than_images_are_none_of_its(size, kernel, strides, dtype):
    assert not can_convolve(tf.zeros([1, *size, 1], dtype), kernel, strides)
