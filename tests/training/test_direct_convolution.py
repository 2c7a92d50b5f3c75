"""A convolution in C++ and its gradients are those of TensorFlow, for any strides."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tests.fixtures.amx import SIDE
from tests.fixtures.layers import whole_numbers
from tfperf.training import convolution, convolve
from tfperf.training.direct_convolution import (
    can_convolve_directly,
    convolve_directly,
    input_gradient_directly,
    kernel_gradient_directly,
)
from tfperf.training.xla_function import can_be_compiled

pytestmark = pytest.mark.skipif(not can_be_compiled(), reason="needs a C++ compiler, and no GPU")
TYPES = st.sampled_from(["float32", "bfloat16"])


@pytest.fixture(autouse=True, scope="module")
def _compiled():
    assert can_convolve_directly(*whole_numbers((1, 3, 3, 1), (3, 3, 1, 1)), "same")


def in_float64(inputs, kernel, upstream, strides, padding):
    """Outputs, and the gradients of both."""
    inputs, kernel, upstream = (tf.cast(one, tf.float64) for one in (inputs, kernel, upstream))
    with tf.GradientTape() as tape:
        tape.watch([inputs, kernel])
        outputs = tf.nn.conv2d(inputs, kernel, strides, padding.upper())
    return [outputs, *tape.gradient(outputs, [inputs, kernel], upstream)]


def output_shape(inputs, kernel, strides, padding):
    return keras.ops.shape(tf.nn.conv2d(*(tf.zeros(one) for one in (inputs, kernel)), strides, padding.upper()))


def check_exact(found, exact, dtype):
    """Equal to what is exact, rounded once."""
    for ours, right in zip(found, exact, strict=True):
        assert ours.dtype == dtype
        np.testing.assert_array_equal(tf.cast(ours, tf.float64), tf.cast(tf.cast(right, dtype), tf.float64))


@given(
    batch=st.integers(1, 20),
    size=st.tuples(SIDE, SIDE),
    channels=st.integers(1, 40),
    filters=st.integers(1, 70),
    kernel=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    strides=st.tuples(st.integers(1, 4), st.integers(1, 3)),
    padding=st.sampled_from(["same", "valid"]),
    dtype=TYPES,
)
@example(70, (4, 4), 260, 520, (3, 3), (1, 1), "same", "float32")  # sums of their own for each thread are many
@example(2, (90, 80), 5, 6, (4, 3), (1, 1), "same", "float32")  # images are taken by rows
@example(1, (70, 130), 36, 6, (3, 2), (2, 1), "valid", "bfloat16")
@example(3, (2, 1), 5, 7, (5, 4), (1, 1), "same", "float32")  # the kernel is larger
@example(2, (9, 9), 3, 5, (2, 1), (4, 3), "same", "float32")  # some inputs are never read
@example(2, (9, 8), 300, 17, (2, 2), (1, 1), "valid", "float32")  # read where they lie, in several stretches
@example(37, (6, 5), 7, 20, (5, 3), (1, 1), "same", "bfloat16")  # several images are computed together; one is left
@example(37, (6, 5), 7, 20, (5, 3), (1, 1), "same", "float32")
@example(33, (13, 13), 20, 50, (5, 5), (1, 1), "valid", "bfloat16")
@settings(max_examples=80, deadline=None)
def test_it_is_tensorflow_s_for_any_shape(batch, size, channels, filters, kernel, strides, padding, dtype):
    assume(padding == "same" or all(side >= width for side, width in zip(size, kernel, strict=True)))
    shapes = (batch, *size, channels), (*kernel, channels, filters)
    numbers = whole_numbers(*shapes, output_shape(*shapes, strides, padding))
    inputs, weights, upstream = (tf.cast(one, dtype) for one in numbers)
    assert can_convolve_directly(inputs, weights, padding)
    found = [convolve_directly(inputs, weights, strides, padding)]
    given = (upstream, inputs, weights, strides, padding)
    found += [input_gradient_directly(*given), kernel_gradient_directly(*given)]
    check_exact(found, in_float64(*numbers, strides, padding), dtype)


def test_no_images_have_no_outputs_and_no_gradient():
    numbers = whole_numbers((0, 5, 5, 4), (3, 3, 4, 6), (0, 5, 5, 6))
    inputs, kernel, upstream = (tf.cast(one, tf.float32) for one in numbers)
    assert convolve_directly(inputs, kernel, (1, 1), "same").shape == (0, 5, 5, 6)
    assert input_gradient_directly(upstream, inputs, kernel, (1, 1), "same").shape == inputs.shape
    assert not np.asarray(kernel_gradient_directly(upstream, inputs, kernel, (1, 1), "same")).any()


@pytest.mark.parametrize("strides", [(1, 1), (2, 3)])
def test_the_batch_need_not_be_known_and_xla_may_compile_it(strides):
    shapes = (9, 8, 7, 5), (3, 2, 5, 6)
    numbers = whole_numbers(*shapes, output_shape(*shapes, strides, "same"))
    inputs, kernel, upstream = (tf.cast(one, tf.float32) for one in numbers)

    def everything(inputs, kernel):
        with tf.GradientTape() as tape:
            tape.watch([inputs, kernel])
            outputs = convolve_directly(inputs, kernel, strides, "same")
        return [outputs, *tape.gradient(outputs, [inputs, kernel], upstream[: tf.shape(inputs)[0]])]

    specs = [tf.TensorSpec([None, 8, 7, 5]), tf.TensorSpec(kernel.shape)]
    for traced in (
        tf.function(everything, input_signature=specs),
        tf.function(everything, jit_compile=True, autograph=False),
    ):
        check_exact(traced(inputs, kernel), in_float64(*numbers, strides, "same"), tf.float32)


def by_tensorflow(inputs, kernel, strides, padding):
    return tf.nn.conv2d(inputs, kernel, strides, padding.upper())


@pytest.mark.parametrize("function", [convolve_directly, functools.partial(convolve, bias=None)])
@pytest.mark.parametrize("of", [0, 1], ids=["inputs", "kernel"])
def test_gradients_of_its_gradients_are_those_of_a_convolution(function, of):
    def penalty(convolution):
        with tf.GradientTape() as outer:
            outer.watch(operands)
            with tf.GradientTape() as inner:
                inner.watch(operands)
                total = tf.reduce_sum(convolution(*operands, strides=(2, 1), padding="valid") ** 2)
            size = tf.reduce_sum(inner.gradient(total, operands[of]) ** 2)
        return outer.gradient(size, operands)

    operands = [tf.cast(one, tf.float32) for one in whole_numbers((4, 6, 5, 3), (3, 3, 3, 4))]
    for ours, right in zip(penalty(function), penalty(by_tensorflow), strict=True):
        np.testing.assert_allclose(ours, right, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_no_number_stays_with_its_image_and_the_places_around_it(dtype):
    inputs, kernel = (tf.cast(one, dtype) for one in whole_numbers((2, 6, 6, 40), (3, 3, 40, 40)))
    broken = np.array(inputs)
    broken[1, 3, 3, 7] = np.nan
    found = np.isnan(np.asarray(convolve_directly(tf.constant(broken), kernel, (1, 1), "same"), "float32"))
    assert found[1, 2:5, 2:5].all()
    found[1, 2:5, 2:5] = False
    assert not found.any()


def calls_of(function, *operands):
    """How many functions in C++ a graph calls."""
    graph = tf.function(function, autograph=False).get_concrete_function(*operands).graph.as_graph_def()
    return sum(node.op == "XlaCallModule" for one in graph.library.function for node in one.node_def)


@pytest.mark.parametrize("padding", ["same", "valid"])
def test_convolve_sums_a_kernel_s_gradient_in_pairs_where_the_processor_multiplies_them(padding, monkeypatch):
    """And no other: oneDNN's are as fast."""
    monkeypatch.setattr(convolution, "multiplies_pairs", lambda: True)
    monkeypatch.setattr(convolution, "can_be_by_winograd", lambda *_: False)
    numbers = whole_numbers((5, 9, 8, 7), (3, 2, 7, 20), output_shape((5, 9, 8, 7), (3, 2, 7, 20), (2, 1), padding))
    inputs, kernel, upstream = (tf.cast(one, tf.bfloat16) for one in numbers)

    def trained(inputs, kernel, upstream):
        with tf.GradientTape() as tape:
            tape.watch([inputs, kernel])
            outputs = convolve(inputs, kernel, strides=(2, 1), padding=padding)
        return tape.gradient(outputs, [inputs, kernel], upstream)

    given = inputs, kernel, upstream
    check_exact(trained(*given), in_float64(*numbers, (2, 1), padding)[1:], tf.bfloat16)
    assert calls_of(trained, *given) == 1
    monkeypatch.setattr(convolution, "multiplies_pairs", lambda: False)
    assert calls_of(trained, *given) == 0


def test_convolve_has_those_gradients_in_float32_that_are_asked_for_and_no_c_where_no_tape_sees_it():
    inputs, kernel = (tf.cast(one, tf.float32) for one in whole_numbers((4, 9, 9, 8), (3, 3, 8, 16)))

    def trained(inputs, kernel, *, images=False):
        with tf.GradientTape() as tape:
            tape.watch([kernel] if images else [inputs, kernel])
            outputs = convolve(inputs, kernel, padding="same")
        return tape.gradient(outputs, [inputs, kernel])

    assert calls_of(trained, inputs, kernel) == 2
    assert calls_of(functools.partial(trained, images=True), inputs, kernel) == 1
    assert calls_of(lambda *given: convolve(*given, padding="same"), inputs, kernel) == 0


@pytest.mark.parametrize(
    ("inputs", "kernel", "padding", "types"),
    [
        ((9, 9, 2), (3, 3, 2, 4), "same", ("float16", "float16")),
        ((9, 9, 2), (3, 3, 2, 4), "same", ("bfloat16", "float32")),
        ((2, 9, 2), (3, 3, 2, 4), "valid", ("float32", "float32")),
        ((9, 9, 2), (3, 3, 2, 4), "causal", ("float32", "float32")),
        ((9, 9, 4), (3, 3, 2, 4), "same", ("float32", "float32")),
        ((9, 9, 2), (3, 3, 2, 0), "same", ("float32", "float32")),
        ((9, None, 2), (3, 3, 2, 4), "same", ("float32", "float32")),
        ((9, 9, 2), (3, 3, None, None), "same", ("float32", "float32")),
    ],
)
def test_what_is_none_of_its(inputs, kernel, padding, types):
    specs = [tf.TensorSpec(shape, dtype) for shape, dtype in zip(((1, *inputs), kernel), types, strict=True)]
    assert not can_convolve_directly(*specs, padding)
