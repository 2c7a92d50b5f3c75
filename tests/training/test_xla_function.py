"""Functions in C++ that XLA calls: compiled when they are needed, and done without where they cannot be."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfperf.training import CompiledLayerNormalization, xla_function


@pytest.fixture
def asked_anew(monkeypatch):
    """Whether functions can be called is asked once in each process, and once more here."""
    monkeypatch.setattr(xla_function, "is_there", functools.cache(xla_function.is_there.__wrapped__))


def test_without_a_compiler_xla_s_own_code_is_taken_and_a_warning_says_so(asked_anew, monkeypatch):
    monkeypatch.setenv("CXX", "/no/such/compiler")
    inputs = tf.constant(np.random.default_rng(0).normal(size=[2, 3, 4]), tf.float32)
    plain, fused = keras.layers.LayerNormalization(), CompiledLayerNormalization()
    told = r"^training goes on without layer_norm\.cc, and is slower: expected a compiler"
    with pytest.warns(UserWarning, match=told), tf.GradientTape():
        found = fused(inputs, training=True)
    np.testing.assert_allclose(found, plain(inputs), atol=1e-6)
    with tf.GradientTape():
        fused(inputs, training=True)  # and does not warn again


def test_where_there_is_a_gpu_nothing_is_compiled(asked_anew, monkeypatch):
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: [kind])
    monkeypatch.setattr(xla_function, "compile_once", None)  # it would be called
    assert not xla_function.is_there("layer_norm")


def test_without_a_place_for_a_cache_xla_s_own_code_is_taken(asked_anew, monkeypatch):
    monkeypatch.setenv("TFPERF_CACHE", "/dev/null/cache")
    with pytest.warns(UserWarning, match=r"^training goes on without layer_norm\.cc, and is slower: .*/dev/null/cache"):
        assert not xla_function.is_there("layer_norm")


def test_a_source_that_does_not_compile_is_done_without(asked_anew, monkeypatch, tmp_path):
    (tmp_path / "broken.cc").write_text("int answer() { return other; }\n")
    monkeypatch.setattr(xla_function, "SOURCES", tmp_path)
    with pytest.warns(
        UserWarning, match=r"^training goes on without broken\.cc, and is slower: the compiler, on broken"
    ):
        assert not xla_function.is_there("broken")


def test_a_function_that_nobody_registered_is_an_error_when_it_is_called():
    @tf.function(jit_compile=True, autograph=False)
    def calling(given):
        return xla_function.call("tfperf_no_such_function", [given], [0])

    with pytest.raises(tf.errors.OpError, match="tfperf_no_such_function"):
        calling(tf.ones([2, 3]))


def test_a_function_with_operands_of_the_wrong_kind_is_an_error():
    assert xla_function.is_there("layer_norm")

    @tf.function(jit_compile=True, autograph=False)
    def calling(rows, scale):
        return xla_function.call("tfperf_layer_norm_f32", [rows, scale], [0], epsilon=1e-3)

    with pytest.raises(tf.errors.OpError, match="expected 3 but got 2"):
        calling(tf.ones([2, 3]), tf.ones([3]))


def test_a_result_has_the_form_of_an_operand_or_one_that_is_given():
    assert xla_function.is_there("activation")

    @tf.function(jit_compile=True, autograph=False)
    def calling(given):
        form = tf.TensorSpec([2, 3], tf.float32)
        return [xla_function.call("tfperf_relu_f32", [given], [result])[0] for result in (0, form)]

    for found in calling(tf.constant([[1.0, -1, 2], [-2, 3, -3]])):
        np.testing.assert_array_equal(found, [[1, 0, 2], [0, 3, 0]])
