"""The gradient of a bias in C++ is the sum of all rows, in float32."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.fixtures.layers import whole_numbers
from tfperf.training import bias
from tfperf.training.bias import add_bias, sum_rows
from tfperf.training.xla_function import can_be_compiled

pytestmark = pytest.mark.skipif(not can_be_compiled(), reason="needs a C++ compiler, and no GPU")
TYPES = ["float32", "bfloat16"]


@pytest.fixture(autouse=True)
def _all_are_many(monkeypatch):
    monkeypatch.setattr(bias, "MANY_NUMBERS", 0)


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(0, 60), columns=st.integers(1, 70), dtype=st.sampled_from(TYPES))
@example(rows=20_000, columns=50, dtype="bfloat16")  # threads share the rows
@example(rows=3_001, columns=300, dtype="float32")
@example(rows=1, columns=90_000, dtype="float32")  # of which there are fewer than threads
def test_a_sum_of_rows_is_exact_and_rounded_once(rows, columns, dtype):
    (whole,) = whole_numbers((rows, columns))
    found = sum_rows(tf.cast(whole, dtype))
    assert found.dtype == dtype
    exact = tf.cast(tf.reduce_sum(tf.cast(tf.cast(whole, dtype), tf.float64), 0), dtype)
    np.testing.assert_array_equal(tf.cast(found, tf.float64), tf.cast(exact, tf.float64))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(1_500, 33), (4, 5, 6, 20)])
def test_a_bias_and_its_gradients_within_xla_are_those_of_a_sum(shape, dtype):
    outputs, level, upstream = (tf.cast(one, dtype) for one in whole_numbers(shape, shape[-1:], shape))

    def everything(add):
        @tf.function(jit_compile=True, autograph=False)
        def traced(outputs, level):
            with tf.GradientTape() as second:
                second.watch(level)
                with tf.GradientTape() as tape:
                    tape.watch([outputs, level])
                    added = add(outputs, level)
                    weighed = added * added * upstream
                gradients = tape.gradient(weighed, [outputs, level])
            return [added, *gradients, second.gradient(gradients[1], level)]

        return traced(outputs, level), traced.experimental_get_compiler_ir(outputs, level)(stage="hlo")

    (found, program), (right, _) = everything(add_bias), everything(tf.add)
    assert "tfperf_bias_gradient" in program
    for ours, exact in zip(found, right, strict=True):
        np.testing.assert_allclose(
            np.asarray(ours, "float64"), np.asarray(exact, "float64"), rtol=1e-5 if dtype == "float32" else 2e-2
        )


def test_sums_in_bfloat16_do_not_stand_still():
    """Where each sum is rounded they do from 256 on."""
    np.testing.assert_array_equal(tf.cast(sum_rows(tf.ones([1_024, 3], tf.bfloat16)), tf.float32), [1_024] * 3)


def test_few_numbers_other_types_and_open_sizes_are_left_to_xla(monkeypatch):
    def calls(spec):
        graph = tf.function(sum_rows, autograph=False).get_concrete_function(spec).graph.as_graph_def()
        return sum(node.op == "XlaCallModule" for one in graph.library.function for node in one.node_def)

    assert calls(tf.TensorSpec([4, 8])) == 1
    assert calls(tf.TensorSpec([None, 8])) == calls(tf.TensorSpec([4, 8], tf.float16)) == 0
    monkeypatch.setattr(bias, "MANY_NUMBERS", 33)
    assert calls(tf.TensorSpec([4, 8])) == 0
