"""What pipelines are fed with and give: batches of scaled images, files of records, and the examples in them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfperf.data import Dataset, sorted_examples, training_batches, write_records
from tfperf.errors import DataError

INPUTS = np.array([[0.5, 1], [0.25, 2], [0.5, 1], [0.125, 3], [0.75, 4]], np.float32)
LABELS = np.array([3, 1, 2, 0, 1])


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


@pytest.fixture
def random_images():
    images = np.random.default_rng(0).integers(0, 256, (7, 5, 4, 1), np.uint8)
    return Dataset("toy", "this test", tuple("abcdefg"), images, np.arange(7), images[:1], np.zeros(1, np.int64))


def records(path):
    import tensorflow as tf

    for record in tf.data.TFRecordDataset(path).as_numpy_iterator():
        feature = tf.train.Example.FromString(record).features.feature
        (image,), (label,) = feature["image"].bytes_list.value, feature["label"].int64_list.value
        yield tf.io.decode_png(image).numpy(), label


def test_the_files_hold_the_images_in_turn(random_images, tmp_path):
    paths = write_records(random_images, tmp_path, files=3)
    assert [path.name for path in sorted(tmp_path.iterdir())] == [f"train-0000{k}-of-00003.tfrecord" for k in range(3)]
    for number, path in enumerate(paths):
        images, labels = zip(*records(path), strict=True)
        assert labels == tuple(range(number, 7, 3))
        np.testing.assert_array_equal(images, random_images.train_images[number::3])


@pytest.mark.parametrize("files", [0, 8])
def test_no_file_is_empty(random_images, tmp_path, files):
    with pytest.raises(ValueError, match=f"expected files from 1 to 7, the images. Received: files={files}"):
        write_records(random_images, tmp_path, files=files)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there_is_named(random_images, tmp_path):
    with pytest.raises(DataError, match=r"cannot write the images of toy into .*nowhere"):
        write_records(random_images, tmp_path / "nowhere", files=2)


def test_images_that_png_cannot_hold_are_named(tmp_path):
    images = np.zeros((1, 2, 2, 5), np.uint8)
    data = Dataset("five channels", "this test", ("a",), images, np.zeros(1, np.int64), images, np.zeros(1, np.int64))
    with pytest.raises(DataError, match="cannot write the images of five channels"):
        write_records(data, tmp_path, files=1)


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
