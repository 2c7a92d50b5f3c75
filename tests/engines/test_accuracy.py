"""The share of labels that the largest answers find, and which labels are none."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfperf.engines.accuracy import accuracy_of, check_labels
from tfperf.errors import EngineError
from tfperf.exports.signature import Signature, TensorForm

NONE = np.empty(0, np.int64)


def signature(*shapes):
    forms = tuple(TensorForm(name=f"y{at}", shape=shape, dtype="float32") for at, shape in enumerate(shapes))
    return Signature(inputs=(TensorForm(name="x", shape=(None, 2), dtype="float32"),), outputs=forms)


@given(st.integers(1, 30), st.integers(2, 6), st.integers(0, 2**32 - 1), st.sampled_from(["uint8", "int32", "int64"]))
def test_it_is_the_share_of_rows_whose_largest_answer_is_the_label(rows, classes, seed, dtype):
    generator = np.random.default_rng(seed)
    answers = generator.standard_normal((rows, classes)).astype("float32")
    labels = generator.integers(0, classes, rows).astype(dtype)
    check_labels([labels], signature((None, classes)), rows)
    expected = sum(int(np.argmax(row)) == label for row, label in zip(answers, labels, strict=True)) / rows
    assert accuracy_of([answers], [labels]) == pytest.approx(expected)
    assert accuracy_of([answers], [answers.argmax(axis=1)]) == 1
    assert accuracy_of([answers], [(answers.argmax(axis=1) + 1) % classes]) == 0


def test_outputs_without_labels_do_not_count_and_larger_ones_count_more():
    eye = np.eye(3, dtype="float32")
    tokens = np.stack([eye, eye])  # (2, 3, 3): each place has its own answer
    labels = [np.array([0, 2]), NONE, np.array([[0, 1, 2], [0, 1, 0]])]
    answers = [eye[:2], np.ones((2, 5), "float32"), tokens]
    check_labels(labels, signature((None, 3), (None, 5), (None, 3, 3)), 2)
    check_labels(labels, signature((None, 3), (None, 5), (None, None, 3)), 2)
    assert accuracy_of(answers, labels) == pytest.approx((1 + 5) / (2 + 6))


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("output", [0, 1])
def test_an_answer_that_is_not_finite_is_an_error(value, output):
    answers = [np.eye(2, dtype="float32"), np.eye(2, dtype="float32")]
    answers[output][1, 0] = value
    with pytest.raises(EngineError, match=r"^expected finite answers to the labelled inputs\. Received: NaN or infi"):
        accuracy_of(answers, [np.array([0, 1]), NONE])


@pytest.mark.parametrize(
    ("labels", "shape", "message"),
    [
        (np.array([0, 1]), (None,), r"^expected an output with a score for each of several classes\. .* y0 \(any\)"),
        (np.array([0, 1]), (None, 1), "score for each of several classes"),
        (np.array([0, 1]), (None, None), "score for each of several classes"),
        (np.array([0.0, 1.0]), (None, 3), r"^expected whole numbers \(2,\) as labels of y0 .* \(2,\) of float64$"),
        (np.array([True, False]), (None, 3), "of bool$"),
        (np.array([0, 1, 2]), (None, 3), r"whole numbers \(2,\) .* Received: \(3,\) of int64$"),
        (np.array([[0], [1]]), (None, 3), r"Received: \(2, 1\)"),
        (np.array([0, 1]), (None, 4, 3), r"whole numbers \(2, 4\) .* Received: \(2,\)"),
        (np.zeros((2, 5), int), (None, 4, 3), r"whole numbers \(2, 4\) .* Received: \(2, 5\)"),
        (np.zeros((2, 1), int), (None, 4, 3), r"whole numbers \(2, 4\) .* Received: \(2, 1\)"),
        (np.array([0, 3]), (None, 3), r"^expected labels from 0 to 2 for y0 \(any, 3\) float32\. Received: 0 to 3$"),
        (np.array([-1, 2]), (None, 3), "Received: -1 to 2$"),
        (NONE, (None, 3), r"^expected labels of one output at least\. Received: none$"),
    ],
)
def test_labels_that_are_no_classes_of_the_output_are_refused(labels, shape, message):
    with pytest.raises(ValueError, match=message):
        check_labels([labels], signature(shape), 2)
