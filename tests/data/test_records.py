"""Every image is in one of the files, with its label, and can be decoded to the last bit."""

import numpy as np
import pytest

from tfperf.data import Dataset, write_records
from tfperf.errors import DataError


@pytest.fixture
def data():
    images = np.random.default_rng(0).integers(0, 256, (7, 5, 4, 1), np.uint8)
    return Dataset("toy", "this test", tuple("abcdefg"), images, np.arange(7), images[:1], np.zeros(1, np.int64))


def read(path):
    import tensorflow as tf

    for record in tf.data.TFRecordDataset(path).as_numpy_iterator():
        feature = tf.train.Example.FromString(record).features.feature
        (image,), (label,) = feature["image"].bytes_list.value, feature["label"].int64_list.value
        yield tf.io.decode_png(image).numpy(), label


def test_the_files_hold_the_images_in_turn(data, tmp_path):
    paths = write_records(data, tmp_path, files=3)
    assert [path.name for path in sorted(tmp_path.iterdir())] == [f"train-0000{k}-of-00003.tfrecord" for k in range(3)]
    for number, path in enumerate(paths):
        images, labels = zip(*read(path), strict=True)
        assert labels == tuple(range(number, 7, 3))
        np.testing.assert_array_equal(images, data.train_images[number::3])


@pytest.mark.parametrize("files", [0, 8])
def test_no_file_is_empty(data, tmp_path, files):
    with pytest.raises(ValueError, match=f"expected files from 1 to 7, the images. Received: files={files}"):
        write_records(data, tmp_path, files=files)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there_is_named(data, tmp_path):
    with pytest.raises(DataError, match=r"cannot write the images of toy into .*nowhere"):
        write_records(data, tmp_path / "nowhere", files=2)


def test_images_that_png_cannot_hold_are_named(tmp_path):
    images = np.zeros((1, 2, 2, 5), np.uint8)
    data = Dataset("five channels", "this test", ("a",), images, np.zeros(1, np.int64), images, np.zeros(1, np.int64))
    with pytest.raises(DataError, match="cannot write the images of five channels"):
        write_records(data, tmp_path, files=1)
