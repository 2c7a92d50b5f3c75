"""Whole batches of scaled images, in another order each epoch, and the same again for an equal call."""

import numpy as np
import pytest

from tfperf.data import Dataset, training_batches


@pytest.fixture
def data():
    images = np.arange(10, dtype=np.uint8).reshape(10, 1, 1, 1) * 25
    return Dataset("toy", "this test", tuple("0123456789"), images, np.arange(10), images[:1], np.zeros(1, np.int64))


def epoch(pipeline):
    images, labels = zip(*pipeline.as_numpy_iterator(), strict=True)
    return np.array(images), np.array(labels)


def test_batches_are_whole_and_scaled(data):
    images, labels = epoch(training_batches(data, 4))
    assert images.shape == (2, 4, 1, 1, 1)
    assert images.dtype == np.float32
    assert len(set(labels.ravel())) == 8
    np.testing.assert_allclose(images[..., 0, 0, 0], labels * 25 / 255, rtol=1e-6)


def test_each_pass_has_its_order_and_an_equal_call_the_same_orders(data):
    first, second = training_batches(data, 5, seed=3), training_batches(data, 5, seed=3)
    orders = [[epoch(pipeline)[1].tolist() for _ in range(3)] for pipeline in (first, second)]
    assert orders[0] == orders[1]
    assert orders[0][0] != orders[0][1]
    assert orders[0][0] != epoch(training_batches(data, 5, seed=4))[1].tolist()


def test_without_reshuffling_each_pass_has_the_same_order(data):
    pipelines = [training_batches(data, 5, seed=seed, reshuffle=False) for seed in (3, 3, 4)]
    first, again, other = ([epoch(pipeline)[1].tolist() for _ in range(2)] for pipeline in pipelines)
    assert first[0] == first[1] == again[0]
    assert first[0] != other[0]
    shown = np.ravel(first[0]).tolist()  # of all batches
    assert shown != sorted(shown)


@pytest.mark.parametrize("batch", [0, 11])
def test_an_epoch_without_a_batch_is_refused(data, batch):
    with pytest.raises(ValueError, match=f"expected batch from 1 to 10, the images. Received: batch={batch}"):
        training_batches(data, batch)
