"""Dataset: what it holds, says and refuses."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfperf.data import Dataset


def make(n_train=5, n_test=3, **changes):
    fields = {
        "name": "toy",
        "source": "this test",
        "class_names": ("a", "b"),
        "train_images": np.arange(n_train * 6, dtype=np.uint8).reshape(n_train, 3, 2, 1),
        "train_labels": np.arange(n_train) % 2,
        "test_images": np.ones((n_test, 3, 2, 1), np.uint8),
        "test_labels": np.zeros(n_test, np.int64),
    }
    return Dataset(**(fields | changes))


def test_says_what_it_is():
    dataset = make(1200, 3)
    assert dataset.input_shape == (3, 2, 1)
    assert dataset.num_classes == 2
    assert dataset.describe() == "toy: 1,200 train + 3 test images of 3x2x1, 2 classes, from this test"
    assert dataset.describe() in repr(dataset)


@pytest.mark.parametrize("field", ["train_images", "train_labels", "test_images", "test_labels"])
def test_arrays_are_read_only(field):
    with pytest.raises(ValueError, match="read-only"):
        getattr(make(), field)[0] = 0


def test_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        make().name = "other"


@given(st.integers(1, 7), st.integers(1, 4))
def test_take_gives_the_first_ones_and_says_so(n_train, n_test):
    whole = make(7, 4)
    part = whole.take(n_train, n_test)
    np.testing.assert_array_equal(part.train_images, whole.train_images[:n_train])
    np.testing.assert_array_equal(part.train_labels, whole.train_labels[:n_train])
    assert len(part.test_images) == len(part.test_labels) == n_test
    assert part.name == whole.name
    assert f"first {n_train} of 7 train + first {n_test} of 4 test" in part.describe()


def test_a_part_of_a_part_is_described_against_the_whole():
    assert "first 2 of 7 train + first 1 of 4 test" in make(7, 4).take(5, 3).take(2, 1).describe()


@pytest.mark.parametrize("counts", [(0, 1), (6, 1), (1, 4), (-1, 1), (True, 1)])
def test_take_refuses_what_is_not_there(counts):
    with pytest.raises(ValueError, match="expected n_t"):
        make(5, 3).take(*counts)


def test_take_refuses_a_fraction():
    with pytest.raises(TypeError):
        make().take(1.5, 1)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train_images": np.zeros((5, 3, 2, 1), np.float32)}, "train_images as uint8"),
        ({"train_images": np.zeros((5, 3, 2), np.uint8)}, "train_images as uint8"),
        ({"test_images": np.zeros((0, 3, 2, 1), np.uint8)}, "test_images as uint8"),
        ({"train_labels": np.zeros(4, np.int64)}, "train_labels as int64"),
        ({"test_labels": np.zeros(3, np.uint8)}, "test_labels as int64"),
        ({"test_labels": np.array([0, 2, 0])}, "test_labels from 0 to 1"),
        ({"test_labels": np.array([0, -1, 0])}, "test_labels from 0 to 1"),
        ({"test_images": np.zeros((3, 2, 3, 1), np.uint8)}, "one shape"),
    ],
)
def test_refuses_arrays_that_do_not_fit(changes, words):
    with pytest.raises(ValueError, match=words):
        make(**changes)
