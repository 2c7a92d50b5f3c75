"""Products by AMX, and of pairs, are those of float32, rounded to bfloat16."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.fixtures.layers import check_near, random_inputs
from tfperf.training import dense, fit, fuse, matmul, use_mixed_precision
from tfperf.training.matmul import can_multiply, multiply
from tfperf.training.within_xla import with_native_layers
from tfperf.training.xla_function import can_be_compiled


@pytest.fixture(autouse=True, params=["matmul", "paired_products"])
def source(request, monkeypatch):
    """What multiplies: by AMX, or pairs of numbers, on processors that cannot do so too, but slowly."""
    if request.param == "matmul":
        request.getfixturevalue("amx")
    elif not can_be_compiled():
        pytest.skip("needs a C++ compiler, and no GPU")
    else:
        monkeypatch.setattr(matmul, "has_amx", lambda: False)
        monkeypatch.setattr(matmul, "multiplies_pairs", lambda: True)
    assert can_multiply()
    return request.param


def test_a_processor_that_does_not_multiply_in_bfloat16_leaves_it_to_xla(monkeypatch):
    for one in ("has_amx", "multiplies_pairs"):
        monkeypatch.setattr(matmul, one, lambda: False)
    assert not can_multiply()


SIZES = st.integers(1, 20) | st.sampled_from([16, 31, 32, 33, 64, 96, 130, 300])


def random_matrix(*shape):
    return tf.cast(np.random.default_rng(sum(shape)).normal(size=shape), tf.bfloat16)


def assert_product(found, first, second):
    """To the nearest number of bfloat16, but for the order of the sum."""
    exact, size = first @ second, np.abs(first) @ np.abs(second)
    assert found.dtype == tf.bfloat16
    assert found.shape == exact.shape
    assert (np.abs(np.asarray(found, "float64") - exact) <= 2**-8 * np.abs(exact) + 1e-5 * size).all()


@settings(max_examples=40, deadline=None)
@given(rows=SIZES, inner=SIZES, columns=SIZES)
@example(rows=300, inner=300, columns=300)  # two threads write tiles
@example(rows=64, inner=96, columns=130)  # the first matrix is read where it is
@example(rows=32, inner=32, columns=1)
@example(rows=0, inner=5, columns=7)
@example(rows=6, inner=5, columns=0)
@example(rows=3, inner=1300, columns=700)  # threads share the columns
@example(rows=801, inner=515, columns=40)  # several blocks of rows for each thread
def test_a_product_and_its_gradients_of_any_sizes_are_those_of_float32(rows, inner, columns):
    first, second, upstream = random_matrix(rows, inner), random_matrix(inner, columns), random_matrix(rows, columns)

    @tf.function(jit_compile=True, autograph=False)
    def everything(first, second, upstream):
        with tf.GradientTape() as tape:
            tape.watch([first, second])
            product = multiply(first, second)
        return [product, *tape.gradient(product, [first, second], upstream)]

    product, of_first, of_second = everything(first, second, upstream)
    a, b, up = (np.asarray(one, "float64") for one in (first, second, upstream))
    assert_product(product, a, b)
    assert_product(of_first, up, b.T)
    assert_product(of_second, a.T, up)


def test_what_is_no_number_stays_in_its_row_and_zeros_stay_zeros():
    first = np.zeros((40, 70), "float32")
    first[3, 69], first[17, 0] = np.nan, np.inf
    second = np.ones((70, 50), "float32")
    compiled = tf.function(multiply, jit_compile=True, autograph=False)
    product = compiled(tf.cast(first, tf.bfloat16), tf.cast(second, tf.bfloat16))
    found = np.asarray(product, "float32")
    assert np.isnan(found[3]).all()
    assert np.isposinf(found[17]).all()
    assert (np.delete(found, [3, 17], axis=0) == 0).all()


def test_gradients_of_gradients_are_those_of_a_product():
    first, second = random_matrix(20, 30), random_matrix(30, 10)

    def second_gradient(product):
        with tf.GradientTape() as outer:
            outer.watch(second)
            with tf.GradientTape() as inner:
                inner.watch(first)
                outputs = tf.square(product(first, second))
            slope = inner.gradient(outputs, first)
        return outer.gradient(slope, second)

    found, expected = (
        np.asarray(tf.function(second_gradient, jit_compile=True, autograph=False)(one), "float32")
        for one in (multiply, tf.matmul)
    )
    assert np.abs(found - expected).max() < 0.02 * np.abs(expected).max()


def made(shape):
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(40, "relu"), keras.layers.Dense(24, "gelu", use_bias=False), keras.layers.Flatten()]
    model = keras.Sequential([keras.Input(shape), *layers, keras.layers.Dense(3, dtype="float32")])
    use_mixed_precision(model)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss, metrics=["accuracy"])
    return model


@pytest.mark.parametrize("shape", [(6,), (5, 6)])
def test_a_loop_by_xla_trains_dense_layers_in_bfloat16_as_one_without(shape):
    """With layers that multiply otherwise: none of them is of another class afterwards, and all train."""
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(22, *shape)), generator.integers(0, 3, 22)
    history, weights = {}, {}
    for jit_compile in (False, True):
        model = made(shape)
        fuse(model, x[:4].astype("float32"), measure=False)
        kinds = [type(layer) for layer in model.layers]
        history[jit_compile] = fit(
            model, x, y, batch_size=4, epochs=3, shuffle=False, verbose=0, jit_compile=jit_compile
        ).history
        assert [type(layer) for layer in model.layers] == kinds
        weights[jit_compile] = model.get_weights()
    np.testing.assert_allclose(history[True]["loss"], history[False]["loss"], rtol=0.02)
    for found, expected in zip(weights[True], weights[False], strict=True):
        np.testing.assert_allclose(found, expected, atol=0.02)


def test_dense_layers_in_bfloat16_multiply_in_c_within_a_loop_by_xla_and_no_others():
    """What is quantized, has LoRA or is in float32 does not."""
    half, low_rank, whole, quantized = (
        keras.layers.Dense(8, dtype="float32" if number == 2 else "mixed_bfloat16") for number in range(4)
    )
    model = keras.Sequential([keras.Input((16,)), half, low_rank, whole, quantized])
    low_rank.enable_lora(2)
    quantized.quantize("int8")

    @tf.function(autograph=False)
    def traced(inputs):
        with with_native_layers(model):
            return model(inputs)

    graph = traced.get_concrete_function(tf.TensorSpec([4, 16])).graph
    calls = [one for one in graph.get_operations() if one.type == "XlaCallModule"]
    assert len(calls) == 1
    assert calls[0].inputs[1].shape == (16, 8)
    plain = tf.function(lambda inputs: model(inputs), autograph=False)
    operations = plain.get_concrete_function(tf.TensorSpec([4, 16])).graph.get_operations()
    assert "XlaCallModule" not in {one.type for one in operations}


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "float32"])
def test_a_loop_by_xla_multiplies_in_c_in_bfloat16_alone(monkeypatch, policy):
    products = []
    monkeypatch.setattr(dense, "multiply", lambda *matrices: products.append(matrices) or multiply(*matrices))
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, dtype=policy), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    for jit_compile in (False, True):
        assert not products
        fit(model, np.ones((8, 6)), np.ones((8, 1)), batch_size=4, verbose=0, jit_compile=jit_compile)
    assert bool(products) == (policy != "float32")


def attending(policy, **options):
    """A model of attention."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((7, 12))
    attention = keras.layers.MultiHeadAttention(2, 6, bias_initializer="normal", dtype=policy)
    sequence = keras.layers.Identity(dtype=policy)(inputs)  # is cast once, and stays one tensor
    model = keras.Model(inputs, attention(sequence, sequence, **options))
    model.set_weights([np.asarray(tf.cast(one, tf.bfloat16), "float32") for one in model.get_weights()])
    return model


def outputs_and_gradients(model, inputs):
    with tf.GradientTape() as tape:
        outputs = tf.cast(model(inputs, training=True), tf.float32)
        loss = tf.reduce_sum(outputs**2) / 1_000  # of keys' biases the gradient is 0, but for rounding
    return [outputs, *tape.gradient(loss, [one.value for one in model.trainable_variables])]


@pytest.mark.parametrize(
    ("options", "merged", "products"),
    [({}, False, 5), ({}, True, 5), ({"use_causal_mask": True}, False, 5)],
    ids=["Keras's", "MergedAttention", "causal"],
)
def test_attention_in_bfloat16_is_keras_s_within_a_loop_by_xla(source, options, merged, products):
    """Two products, the gradients of two kernels and of the heads, with a mask too."""
    model, inputs = attending("mixed_bfloat16", **options), random_inputs([80, 7, 12], "float32")
    plain = outputs_and_gradients(model, inputs)
    if merged:
        fuse(model, inputs, measure=False)
    traced = tf.function(lambda given: outputs_and_gradients(model, given), jit_compile=True, autograph=False)
    with with_native_layers(model):
        found = traced(inputs)
        program = traced.experimental_get_compiler_ir(inputs)(stage="optimized_hlo")
    assert program.count(f'custom_call_target="tfperf_{source}_bf16"') == products

    def exact():
        whole = attending("float32", **options)
        rounded = tf.cast(tf.cast(inputs, tf.bfloat16), tf.float32)
        return [np.asarray(one) for one in outputs_and_gradients(whole, rounded)]

    plain, found = ([np.asarray(one) for one in several] for several in (plain, found))
    check_near(plain, found, "mixed_bfloat16", exact)
