"""Attention in C++ computes as TensorFlow's operations do, however long the sequences are."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tfperf.training import xla_function
from tfperf.training.attending import Dropping, Heads, attend, attend_by_formulas, can_attend
from tfperf.training.dropout import drop, dropped_of

TOLERANCE = {"float32": 2e-6, "bfloat16": 2**-8}
"""Relative to the largest number; in bfloat16 of what float32 computes from the same numbers."""


def random_rows(*shape):
    return tf.constant(np.random.default_rng(0).normal(size=shape), tf.float32)


def outputs_and_gradient(function, merged, upstream):
    with tf.GradientTape() as tape:
        tape.watch(merged)
        outputs = function(merged)
    return outputs, tape.gradient(outputs, merged, upstream)


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 90)),
    heads=st.builds(Heads, st.integers(1, 4), st.integers(1, 40), st.integers(1, 40), st.booleans()),
    dtype=st.sampled_from(list(TOLERANCE)),
)
@example(sizes=(2, 700), heads=Heads(2, 8, 24, causal=True), dtype="float32")  # not all queries at a time
@example(sizes=(2, 700), heads=Heads(2, 8, 24), dtype="bfloat16")
def test_attention_of_any_sizes_is_that_of_tensorflow_s_operations(sizes, heads, dtype):
    merged = tf.cast(random_rows(*sizes, heads.number * (2 * heads.keys + heads.values)), dtype)
    upstream = tf.cast(random_rows(*sizes, heads.number * heads.values), dtype)
    assert can_attend(merged)
    found = outputs_and_gradient(lambda rows: attend(rows, heads), merged, upstream)
    wide = (tf.cast(one, tf.float32) for one in (merged, upstream))
    expected = outputs_and_gradient(lambda rows: attend_by_formulas(rows, heads), *wide)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == dtype
        far = tf.reduce_max(tf.abs(tf.cast(one, tf.float32) - other))
        assert far <= TOLERANCE[dtype] * max(1.0, float(tf.reduce_max(tf.abs(other))))


def test_gradients_of_gradients_are_those_of_tensorflow_s_operations_with_the_same_shares_dropped():
    heads = Heads(2, 3, 4)
    merged, mask = random_rows(2, 9, 20), tf.constant(np.random.default_rng(1).random([2, 9, 9]) > 0.3)
    dropping = Dropping(dropped_of(0.4, tf.float32), tf.constant([7], tf.uint64), tf.constant([1, 2], tf.uint64))
    assert can_attend(merged, mask)
    assert xla_function.is_there("dropout")

    def second(function):
        with tf.GradientTape() as outer:
            outer.watch(merged)
            with tf.GradientTape() as inner:
                inner.watch(merged)
                squares = tf.square(function(merged))
            slope = inner.gradient(squares, merged)
        return outer.gradient(slope, merged)

    dropout = functools.partial(drop, key=dropping.key, counter=dropping.counter, dropped=dropping.dropped)
    found = second(lambda rows: attend(rows, heads, mask, dropping))
    expected = second(lambda rows: attend_by_formulas(rows, heads, mask, dropout))
    np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max())


def test_what_is_no_number_stays_in_its_example():
    merged = np.zeros((3, 5, 12), "float32")
    merged[1, 2, 3] = np.nan
    assert can_attend(tf.constant(merged))
    found = np.isnan(attend(tf.constant(merged), Heads(2, 2, 2)))
    assert found[1].any()
    assert not found[[0, 2]].any()


@pytest.mark.parametrize("shape", [(2, 1, 5), (3, 4, 5)])
def test_a_mask_of_other_examples_or_queries_is_refused(shape):
    merged, mask = tf.zeros([3, 5, 12]), tf.ones(shape, tf.bool)
    assert can_attend(merged, mask)
    with pytest.raises(tf.errors.InvalidArgumentError, match="expected a mask"):
        attend(merged, Heads(2, 2, 2), mask)


def test_sizes_that_are_unknown_are_left_to_tensorflow():
    assert not can_attend(tf.zeros([2, 0, 12]))
    assert not can_attend(tf.zeros([2, 5, 12]), tf.ones([2, 5, 1], tf.bool))  # the same for all keys
    assert not can_attend(tf.zeros([2, 5, 12], tf.float16))
