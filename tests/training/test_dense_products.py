"""Dense layers and attention of many rows in float32 are Keras's within what XLA compiles."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.fixtures.layers import check_near, random_inputs
from tfperf.native.processor import level_of_cpu
from tfperf.training import dense_products, fit, fuse
from tfperf.training.dense_products import can_multiply_rows, multiply_rows
from tfperf.training.within_xla import native_form, with_native_layers
from tfperf.training.xla_function import can_be_compiled

SIZES = st.integers(1, 70) | st.sampled_from([16, 31, 32, 33, 96, 144, 257, 300])


@pytest.fixture(autouse=True)
def _whatever_pays(monkeypatch):
    """On any processor, and of few rows too."""
    if not can_be_compiled():
        pytest.skip("needs a C++ compiler")
    monkeypatch.setattr(dense_products, "LEVEL", level_of_cpu())
    monkeypatch.setattr(dense_products, "FEWEST_ROWS", 1)
    monkeypatch.setattr(dense_products, "FEWEST_COLUMNS", 1)
    assert can_multiply_rows(tf.ones([2, 3]), tf.ones([3, 4]))


def by_formulas(rows, kernel, bias, relu):
    outputs = tf.matmul(rows, kernel) + bias
    return tf.nn.relu(outputs) if relu else outputs


def everything(function, operands, upstream):
    """Outputs and the gradients of all operands."""

    @tf.function(jit_compile=True, autograph=False)
    def compiled(*operands):
        with tf.GradientTape() as tape:
            tape.watch(operands)
            outputs = function(*operands)
        return [outputs, *tape.gradient(outputs, operands, upstream)]

    return compiled(*operands)


@settings(max_examples=50, deadline=None)
@given(rows=SIZES, inner=SIZES, columns=SIZES, relu=st.booleans())
@example(rows=1500, inner=300, columns=130, relu=True)  # several passes of each kind, for each thread
@example(rows=1030, inner=40, columns=700, relu=False)
@example(rows=40, inner=1100, columns=1000, relu=False)  # threads share the kernel's rows
@example(rows=40, inner=1000, columns=1100, relu=True)  # and its columns
def test_products_and_their_gradients_of_any_sizes_are_those_of_tensorflow(rows, inner, columns, relu):
    generator = np.random.default_rng(rows + inner + columns)
    sizes = ((rows, inner), (inner, columns), (columns,), (rows, columns))
    # Whole numbers, whose sums are exact in any order
    *operands, upstream = (tf.constant(generator.integers(-4, 5, size), tf.float32) for size in sizes)
    found = everything(lambda *given: multiply_rows(*given, relu=relu), operands, upstream)
    expected = everything(lambda *given: by_formulas(*given, relu), operands, upstream)
    for ours, right in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, right)


def test_what_is_no_number_stays():
    rows, kernel, bias = np.ones([20, 7], "float32"), tf.ones([7, 9]), tf.constant([np.nan, *[-100.0] * 4, *[0.0] * 4])
    rows[3, 2], rows[5, 6] = np.nan, -np.inf
    ones = tf.ones([20, 9])
    outputs, *gradients = everything(lambda *given: multiply_rows(*given, relu=True), [rows, kernel, bias], ones)
    expected, *right = everything(lambda *given: by_formulas(*given, True), [rows, kernel, bias], ones)
    np.testing.assert_array_equal(outputs, expected)
    for ours, one in zip(gradients, right, strict=True):
        np.testing.assert_array_equal(ours, one)
    assert np.isnan(outputs).any()
    assert (np.asarray(outputs)[5, 1:] == 0).all()


@pytest.mark.parametrize("of", [0, 1, 2], ids=["rows", "kernel", "bias"])
def test_gradients_of_gradients_are_those_of_tensorflow(of):
    operands = [random_inputs(shape, "float32") for shape in ([20, 30], [30, 10], [10])]

    def second_gradients(function):
        with tf.GradientTape() as outer:
            outer.watch(operands)
            with tf.GradientTape() as inner:
                inner.watch(operands)
                total = tf.reduce_sum(function(*operands) ** 2)
            slope = tf.reduce_sum(inner.gradient(total, operands[of]) ** 2)
        return outer.gradient(slope, operands)

    found, expected = (
        tf.function(second_gradients, jit_compile=True, autograph=False)(function)
        for function in (lambda *given: multiply_rows(*given, relu=True), lambda *given: by_formulas(*given, True))
    )
    for ours, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, right, rtol=1e-4, atol=1e-3 * np.abs(right).max())


def net(seed=0):
    """Dense layers before and after `fuse`, with and without what C++ takes, and attention."""
    keras.utils.set_random_seed(seed)
    inputs = keras.Input((6, 5))
    attention = keras.layers.MultiHeadAttention(2, 4, bias_initializer="normal")(inputs, inputs)
    x = keras.layers.Dense(24, "relu")(attention)
    x = keras.layers.Dense(10, "gelu", bias_initializer="normal")(x)
    x = keras.layers.Dense(9, use_bias=False)(x)
    x = keras.layers.Flatten()(x)
    x = keras.layers.Dense(12, "tanh")(x)
    return keras.Model(inputs, keras.layers.Dense(3)(x))


@pytest.mark.parametrize("fused", [False, True])
def test_layers_within_a_loop_by_xla_are_keras_s(fused):
    model, inputs = net(), random_inputs([8, 6, 5], "float32")
    if fused:
        fuse(model, inputs, measure=False)

    def outputs_and_gradients(given):
        with tf.GradientTape() as tape:
            outputs = model(given, training=True)
            loss = tf.reduce_sum(outputs**2)
        return [outputs, *tape.gradient(loss, [one.value for one in model.trainable_variables])]

    expected = outputs_and_gradients(inputs)
    traced = tf.function(outputs_and_gradients, jit_compile=True, autograph=False)
    with with_native_layers(model):
        found = traced(inputs)
        program = traced.experimental_get_compiler_ir(inputs)(stage="optimized_hlo")
    # Two products of attention and four layers with a bias, forward and for the kernel
    assert program.count('custom_call_target="tfperf_dense_f32"') == 6
    assert program.count('custom_call_target="tfperf_dense_kernel_gradient_f32"') == 6
    check_near(*([np.asarray(one, "float64") for one in several] for several in (expected, found)), "float32", None)


def test_a_loop_by_xla_trains_as_one_without():
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(22, 6, 5)), generator.integers(0, 3, 22)
    losses = {}
    for jit_compile in (False, True):
        model = net()
        model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        kinds = [type(layer) for layer in model.layers]
        history = fit(model, x, y, batch_size=4, epochs=3, shuffle=False, verbose=0, jit_compile=jit_compile)
        assert [type(layer) for layer in model.layers] == kinds
        losses[jit_compile] = history.history["loss"]
    np.testing.assert_allclose(losses[True], losses[False], rtol=1e-4)


def test_what_is_none_of_its(monkeypatch):
    rows, kernel = tf.TensorSpec([20, 30], tf.float32), tf.TensorSpec([30, 40], tf.float32)
    assert can_multiply_rows(rows, kernel)
    for shape, dtype in (([20, 30], tf.bfloat16), ([None, 30], tf.float32), ([2, 10, 30], tf.float32)):
        assert not can_multiply_rows(tf.TensorSpec(shape, dtype), kernel)
    monkeypatch.setattr(dense_products, "FEWEST_COLUMNS", 31)
    assert not can_multiply_rows(rows, kernel)
    monkeypatch.setattr(dense_products, "FEWEST_COLUMNS", 30)
    monkeypatch.setattr(dense_products, "FEWEST_ROWS", 21)
    assert not can_multiply_rows(rows, kernel)
    monkeypatch.setattr(dense_products, "FEWEST_ROWS", 20)
    assert can_multiply_rows(rows, kernel)
    monkeypatch.setattr(dense_products, "LARGE_KERNEL", 1199)
    assert not can_multiply_rows(rows, kernel)
    monkeypatch.setattr(dense_products, "MANY_ROWS", 20)
    assert can_multiply_rows(rows, kernel)
    monkeypatch.setattr(dense_products, "LEVEL", "another")
    assert not can_multiply_rows(rows, kernel)


def test_layers_that_are_quantized_or_have_lora_are_keras_s():
    low_rank, quantized = keras.layers.Dense(8), keras.layers.Dense(8)
    for layer in (low_rank, quantized):
        layer.build((4, 16))
    low_rank.enable_lora(2)
    quantized.quantize("int8")
    assert native_form(low_rank) is native_form(quantized) is None
