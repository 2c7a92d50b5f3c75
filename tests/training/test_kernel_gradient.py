"""The gradient of a kernel by AMX is that of float32, rounded to bfloat16."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import assume, example

from tests.fixtures.amx import assert_rounded, for_convolutions
from tests.fixtures.layers import whole_numbers
from tfperf.training.kernel_gradient import can_be_by_amx, kernel_gradient


@pytest.fixture(autouse=True)
def _compiled(amx):
    assert can_be_by_amx()


def operands(batch, size, channels, filters, kernel, padding):
    """Upstream gradients, inputs and a kernel."""
    made = [one if padding == "same" else one - width + 1 for one, width in zip(size, kernel, strict=True)]
    return whole_numbers((batch, *made, filters), (batch, *size, channels), (*kernel, channels, filters))


def in_float32(upstream, inputs, kernel, padding):
    if not tf.size(inputs):  # TensorFlow leaves the memory as it was
        return np.zeros(kernel.shape, "float32")
    upstream, inputs = (tf.cast(one, tf.float32) for one in (upstream, inputs))
    form = {"strides": [1] * 4, "padding": padding.upper()}
    sizes = {"filter_sizes": kernel.shape}
    return np.asarray(tf.raw_ops.Conv2DBackpropFilter(input=inputs, out_backprop=upstream, **sizes, **form))


@for_convolutions
@example(batch=3, size=(40, 35), channels=40, filters=33, kernel=(3, 3), padding="same")  # an image is more than a pass
@example(batch=64, size=(5, 5), channels=96, filters=64, kernel=(5, 5), padding="valid")  # one place for each image
@example(batch=60, size=(6, 6), channels=160, filters=250, kernel=(3, 3), padding="same")  # threads share the channels
@example(batch=3, size=(150, 140), channels=5, filters=6, kernel=(4, 3), padding="same")  # images are taken by rows
@example(batch=1, size=(130, 300), channels=36, filters=6, kernel=(3, 2), padding="valid")
@example(batch=1, size=(18, 17), channels=70, filters=70, kernel=(3, 3), padding="same")  # fewer images than threads
@example(batch=3, size=(2, 1), channels=5, filters=7, kernel=(5, 4), padding="same")  # the kernel is larger
@example(batch=0, size=(5, 5), channels=4, filters=4, kernel=(3, 3), padding="same")
@example(batch=2, size=(0, 5), channels=4, filters=4, kernel=(1, 3), padding="same")
@example(batch=2, size=(5, 0), channels=4, filters=4, kernel=(3, 1), padding="same")
def test_it_is_that_of_float32_for_any_shape(batch, size, channels, filters, kernel, padding):
    assume(padding == "same" or all(side >= width for side, width in zip(size, kernel, strict=True)))
    given = operands(batch, size, channels, filters, kernel, padding)
    assert_rounded(kernel_gradient(*given, padding), in_float32(*given, padding))


def test_the_batch_need_not_be_known_and_xla_may_compile_it():
    upstream, inputs, kernel = operands(9, (8, 7), 5, 6, (3, 2), "same")
    exact = in_float32(upstream, inputs, kernel, "same")
    specs = [tf.TensorSpec([None, *one.shape[1:]], one.dtype) for one in (upstream, inputs)]
    specs.append(tf.TensorSpec(kernel.shape, kernel.dtype))

    def gradient(*given):
        return kernel_gradient(*given, "same")

    assert_rounded(tf.function(gradient, input_signature=specs)(upstream, inputs, kernel), exact)
    assert_rounded(tf.function(gradient, jit_compile=True, autograph=False)(upstream, inputs, kernel), exact)


def test_gradients_of_it_are_those_of_a_convolution():
    upstream, inputs, kernel = operands(4, (6, 5), 3, 4, (3, 3), "same")
    with tf.GradientTape() as tape:
        tape.watch([upstream, inputs])
        found = kernel_gradient(upstream, inputs, kernel, "same")
    of_upstream, of_inputs = tape.gradient(found, [upstream, inputs], kernel)
    wide = [tf.cast(one, tf.float32) for one in (upstream, inputs, kernel)]
    outputs = tf.nn.conv2d(wide[1], wide[2], 1, "SAME")
    back = tf.nn.conv2d_transpose(wide[0], wide[2], inputs.shape, 1, "SAME")
    for one, exact in ((of_upstream, outputs), (of_inputs, back)):
        assert np.abs(np.asarray(one, "float32") - exact).max() <= 2**-6 * np.abs(exact).max()


def test_what_is_no_number_stays_with_its_channel_and_its_filter():
    upstream, inputs, kernel = operands(2, (6, 6), 40, 40, (3, 3), "same")
    for axis, number in ((2, 0), (3, 1)):
        broken = [np.array(upstream), np.array(inputs)]
        broken[1 - number][1, 3, 3, 7] = np.nan
        found = np.asarray(kernel_gradient(*map(tf.constant, broken), kernel, "same"), "float32")
        assert np.isnan(found.take(7, axis)).all()
        assert np.isfinite(np.delete(found, 7, axis)).all()
