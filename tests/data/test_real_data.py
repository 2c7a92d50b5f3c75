"""The real Fashion-MNIST. `make data` obtains it before the tests."""

import gzip
import hashlib
import struct

import numpy as np
import pytest

from tfperf.data import load
from tfperf.data.expected import FASHION_MNIST
from tfperf.data.places import places
from tfperf.data.reading import holds

# Zalando's README gives the MD5 of each .gz file; beside it the time stamp in that file's gzip header.
ORIGINAL = {
    "train-images-idx3-ubyte.gz": ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", 1504176606),
    "train-labels-idx1-ubyte.gz": ("25c81989df183df01b3e8a0aad5dffbe", 1504176606),
    "t10k-images-idx3-ubyte.gz": ("bef4ecab320f06d8554ea6380940ec79", 1504176627),
    "t10k-labels-idx1-ubyte.gz": ("bb300cfdad3c16e7a12a480ee83cd310", 1504176627),
}


@pytest.fixture(scope="module")
def fashion():
    return load("fashion_mnist")


def test_shapes_and_types(fashion):
    assert fashion.train_images.shape == (60_000, 28, 28, 1)
    assert fashion.test_images.shape == (10_000, 28, 28, 1)
    assert fashion.train_images.dtype == np.uint8
    assert fashion.train_labels.dtype == np.int64
    assert fashion.num_classes == 10
    assert fashion.describe().startswith(
        "fashion_mnist: 60,000 train + 10,000 test images of 28x28x1, 10 classes, from "
    )


def test_every_class_is_there_equally_often(fashion):
    assert np.bincount(fashion.train_labels).tolist() == [6_000] * 10
    assert np.bincount(fashion.test_labels).tolist() == [1_000] * 10


def test_first_labels_are_the_published_ones(fashion):
    names = [fashion.class_names[label] for label in fashion.train_labels[:4]]
    assert names == ["Ankle boot", "T-shirt/top", "T-shirt/top", "Dress"]


def test_contents_are_the_expected_ones(fashion):
    headers = [bytes([0, 0, 8, 3]), bytes([0, 0, 8, 1])] * 2
    arrays = [fashion.train_images, fashion.train_labels, fashion.test_images, fashion.test_labels]
    for file, header, array in zip(FASHION_MNIST.files, headers, arrays, strict=True):
        sides = b"".join(side.to_bytes(4, "big") for side in array.shape[:3])
        content = header + sides + array.astype(np.uint8).tobytes()
        assert hashlib.sha256(content).hexdigest() == file.sha256


def test_files_are_those_that_zalando_published(fashion):
    """With the original gzip header in front, even Debian's files have the MD5 that Zalando gives."""
    folder = next(place.folder for place in places(FASHION_MNIST) if holds(place, FASHION_MNIST))
    for file in FASHION_MNIST.files:
        md5, stamp = ORIGINAL[file.filename]
        packed = (folder / file.filename).read_bytes()
        flags = packed[3]
        start = 10 if flags == 0 else packed.index(b"\0", 10) + 1
        assert flags in (0, 8)  # without or with a file name, nothing else
        header = b"\x1f\x8b\x08\x08" + struct.pack("<I", stamp) + packed[8:10]
        original = header + file.filename.removesuffix(".gz").encode() + b"\0" + packed[start:]
        assert hashlib.md5(original).hexdigest() == md5
        assert len(gzip.decompress(original)) == file.size
