"""The order and the batches of a pipeline do not matter; its examples do."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfperf.data.examples import sorted_examples

INPUTS = np.array([[0.5, 1], [0.25, 2], [0.5, 1], [0.125, 3], [0.75, 4]], np.float32)
LABELS = np.array([3, 1, 2, 0, 1])


@given(st.permutations(range(5)), st.integers(1, 5))
def test_order_and_batches_do_not_matter(order, batch):
    batches = [(INPUTS[order][k : k + batch], LABELS[order][k : k + batch]) for k in range(0, 5, batch)]
    for one, other in zip(sorted_examples(batches), sorted_examples([(INPUTS, LABELS)]), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_label_stays_with_its_input():
    inputs, labels = sorted_examples([(INPUTS, LABELS)])
    pairs = {(tuple(row), label) for row, label in zip(inputs.tolist(), labels.tolist(), strict=True)}
    assert pairs == {(tuple(row), label) for row, label in zip(INPUTS.tolist(), LABELS.tolist(), strict=True)}


def test_another_label_is_another_example():
    _, labels = sorted_examples([(INPUTS, LABELS)])
    _, others = sorted_examples([(INPUTS, LABELS[::-1])])
    assert list(labels) != list(others)


def test_it_reads_a_tensorflow_dataset():
    import tensorflow as tf

    dataset = tf.data.Dataset.from_tensor_slices((INPUTS, LABELS)).batch(2)
    np.testing.assert_array_equal(sorted_examples(dataset)[0], sorted_examples([(INPUTS, LABELS)])[0])


def test_no_batch_is_refused():
    with pytest.raises(ValueError, match="expected at least one batch"):
        sorted_examples([])
