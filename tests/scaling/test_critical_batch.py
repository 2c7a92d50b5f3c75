"""Steps to an accuracy: both ends of the rule, and that its range is in order."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfperf.errors import TfperfError
from tfperf.scaling import (
    CRITICAL_BATCH,
    fit_critical_batch,
    part_gradients,
    predict_step,
    seconds_to_accuracy,
    steps_to_accuracy,
)


def test_a_small_batch_needs_as_many_examples_and_a_large_one_as_many_steps():
    assert steps_to_accuracy(1000, 100, 1000) == 200
    assert steps_to_accuracy(1e9, 100, 1000) == pytest.approx(100)
    assert steps_to_accuracy(1, 100, 1000) / steps_to_accuracy(2, 100, 1000) == pytest.approx(2, rel=1e-2)


def test_more_workers_save_less_time_than_they_add_throughput(workload, cluster):
    one, all_ = predict_step(workload, cluster.with_workers(1)), predict_step(workload, cluster)
    sooner = seconds_to_accuracy(one).likely / seconds_to_accuracy(all_).likely
    assert 1 < sooner < all_.throughput.likely / one.throughput.likely
    assert sooner == pytest.approx(
        one.likely.seconds
        * (1 + CRITICAL_BATCH.likely / 64)
        / (all_.likely.seconds * (1 + CRITICAL_BATCH.likely / 1024))
    )


def test_the_range_is_in_order(workload, cluster):
    times = seconds_to_accuracy(predict_step(workload, cluster), least_steps=1000)
    assert times.slow > times.likely > times.fast > 0


BATCHES = (32, 128, 512)


@pytest.fixture(scope="module")
def net():
    import keras

    layer = keras.layers.Dense(1, kernel_initializer=keras.initializers.Constant(1.0))
    net = keras.Sequential([keras.Input([2]), layer])
    net.compile("sgd", "mse", jit_compile=False)
    return net


def test_each_part_has_the_gradient_of_its_own_mean_loss(net):
    images, labels = np.array([[1, 0], [1, 2], [0, 1], [2, 2]], np.float32), np.array([0, 1, 1, 3], np.float32)
    errors = images.sum(axis=1) - labels  # the weights are 1, the bias is 0
    by_image = 2 * errors[:, None] * np.column_stack([images, np.ones(4)])
    np.testing.assert_allclose(part_gradients(net, images, labels, 4), by_image, rtol=1e-6)
    np.testing.assert_allclose(part_gradients(net, images, labels, 2), by_image.reshape(2, 2, 3).mean(1), rtol=1e-6)
    np.testing.assert_allclose(part_gradients(net, images, labels, 1), by_image.mean(0)[None], rtol=1e-6)


def test_sparse_gradients_and_missing_ones_are_dense():
    import keras

    class Idle(keras.layers.Layer):
        def build(self, shape):
            self.unused = self.add_weight(shape=(2,))

        def call(self, inputs):
            return inputs

    embedding = keras.layers.Embedding(3, 1, embeddings_initializer="ones")
    net = keras.Sequential([keras.Input([1], dtype="int32"), embedding, keras.layers.Flatten(), Idle()])
    net.compile("sgd", "mse", jit_compile=False)
    words, labels = np.array([[0], [2], [2], [2]]), np.array([0, 3, 3, 5], np.float32)
    expected = [[1, 0, -2, 0, 0], [0, 0, -6, 0, 0]]  # 2 (1 - label) for each word, halved; then what is not used
    np.testing.assert_allclose(part_gradients(net, words, labels, 2), expected, rtol=1e-6)


@pytest.mark.parametrize(("examples", "parts"), [(4, 3), (4, 0), (0, 1)])
def test_unequal_parts_are_refused(net, examples, parts):
    with pytest.raises(TfperfError, match=rf"multiple of {parts} examples\. Received: {examples} examples"):
        part_gradients(net, np.zeros((examples, 2), np.float32), np.zeros(examples, np.float32), parts)


@given(least=st.floats(1, 1e5), critical=st.floats(1, 1e5))
def test_the_fit_finds_the_curve_that_the_steps_lie_on(least, critical):
    fitted = fit_critical_batch(BATCHES, [steps_to_accuracy(batch, least, critical) for batch in BATCHES])
    np.testing.assert_allclose(fitted, (least, critical), rtol=1e-3)


def test_errors_count_relative_to_the_steps():
    least, critical = fit_critical_batch(BATCHES, [1000, 300, 101])
    expected = np.polyfit(1 / np.array(BATCHES), [1000, 300, 101], 1, w=1 / np.array([1000, 300, 101]))
    np.testing.assert_allclose((critical * least, least), expected, rtol=1e-6)


def test_no_batch_is_critical_where_steps_fall_faster_than_batches_grow():
    assert fit_critical_batch(BATCHES, [1600, 300, 50]) == (0, np.inf)


def test_a_batch_that_saves_nothing_has_no_critical_batch_above_it():
    assert fit_critical_batch(BATCHES, [100, 100, 110])[1] == 0


@pytest.mark.parametrize(
    ("batches", "steps"), [([32], [100]), ([32, 32], [100, 90]), ([32, 64], [100, np.inf]), ([32, 64], [100, np.nan])]
)
def test_too_few_steps_are_refused(batches, steps):
    with pytest.raises(TfperfError, match=r"two batches at least\. Received: steps"):
        fit_critical_batch(batches, steps)
