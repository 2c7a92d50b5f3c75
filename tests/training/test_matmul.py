"""Products by AMX are those of float32, rounded once."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tfperf.training import fit, fuse, use_mixed_precision
from tfperf.training.dense import multiplying_by_amx
from tfperf.training.matmul import can_multiply, multiply

by_amx = pytest.mark.skipif(not can_multiply(), reason="needs a processor with AMX in bfloat16, and a C++ compiler")

SIZES = st.integers(1, 20) | st.sampled_from([16, 31, 32, 33, 64, 96, 130, 300])


def random_matrix(*shape):
    return tf.cast(np.random.default_rng(sum(shape)).normal(size=shape), tf.bfloat16)


def assert_rounded_once(found, exact):
    assert found.dtype == tf.bfloat16
    assert np.abs(np.asarray(found, "float32") - exact).max(initial=0) <= 2**-7 * np.abs(exact).max(initial=0)


@by_amx
@settings(max_examples=40, deadline=None)
@given(rows=SIZES, inner=SIZES, columns=SIZES)
def test_a_product_and_its_gradients_of_any_sizes_are_those_of_float32(rows, inner, columns):
    first, second, upstream = random_matrix(rows, inner), random_matrix(inner, columns), random_matrix(rows, columns)

    @tf.function(jit_compile=True, autograph=False)
    def everything(first, second, upstream):
        with tf.GradientTape() as tape:
            tape.watch([first, second])
            product = multiply(first, second)
        return [product, *tape.gradient(product, [first, second], upstream)]

    exact = [np.asarray(one, "float32") for one in (first, second, upstream)]
    expected = [exact[0] @ exact[1], exact[2] @ exact[1].T, exact[0].T @ exact[2]]
    for one, right in zip(everything(first, second, upstream), expected, strict=True):
        assert one.shape == right.shape
        assert_rounded_once(one, right)


@by_amx
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


@by_amx
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


@by_amx
def test_dense_layers_in_bfloat16_multiply_by_amx_within_a_loop_by_xla_and_no_others():
    """What is quantized, has LoRA or is in float32 does not."""
    half, low_rank, whole = (
        keras.layers.Dense(8, dtype=policy) for policy in ("mixed_bfloat16", "mixed_bfloat16", "float32")
    )
    model = keras.Sequential([keras.Input((16,)), half, low_rank, whole])
    low_rank.enable_lora(2)

    @tf.function(autograph=False)
    def traced(inputs):
        with multiplying_by_amx(model):
            return model(inputs)

    graph = traced.get_concrete_function(tf.TensorSpec([4, 16])).graph
    calls = [one for one in graph.get_operations() if one.type == "XlaCallModule"]
    assert len(calls) == 1
    assert calls[0].inputs[1].shape == (16, 8)
    plain = tf.function(lambda inputs: model(inputs), autograph=False)
    operations = plain.get_concrete_function(tf.TensorSpec([4, 16])).graph.get_operations()
    assert "XlaCallModule" not in {one.type for one in operations}


@by_amx
def test_a_layer_has_its_class_back_where_tracing_fails():
    layer = keras.layers.Dense(8, dtype="mixed_bfloat16")
    model = keras.Sequential([keras.Input((16,)), layer])

    def fail():
        with multiplying_by_amx(model):
            assert type(layer) is not keras.layers.Dense
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        fail()
    assert type(layer) is keras.layers.Dense
