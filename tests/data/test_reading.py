"""Files are checked before they are parsed, bombs do not explode, and pickles are not loaded."""

import gzip
import hashlib
import io
import os
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfperf.data.expected import MNIST, ExpectedFile, ImageSet
from tfperf.data.places import Place
from tfperf.data.reading import parse_idx, parse_npz, read_checked, read_set, unpacked_and_checked
from tfperf.errors import DataError


def expect(name, content):
    return ExpectedFile(name, len(content), hashlib.sha256(content).hexdigest())


def npz(**arrays):
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def test_reads_a_set_of_idx_files(sample, tmp_path):
    sample.write(tmp_path)
    dataset = read_set(Place("a folder", tmp_path, "-"), sample.spec)
    for field, array in zip(("train_images", "train_labels", "test_images", "test_labels"), sample.arrays, strict=True):
        np.testing.assert_array_equal(getattr(dataset, field).reshape(array.shape), array)
    assert dataset.name == "sample"
    assert dataset.source == f"a folder: {tmp_path}"


def one_file_set(content):
    return ImageSet("one", "", "", (expect("one.npz", content),), (4, 3), 5, 3, ("no", "yes"))


def test_reads_a_set_in_one_npz_file(sample, tmp_path):
    keys = ("x_train", "y_train", "x_test", "y_test")
    content = npz(**dict(zip(keys, sample.arrays, strict=True)))
    (tmp_path / "one.npz").write_bytes(content)
    dataset = read_set(Place("a folder", tmp_path, "-"), one_file_set(content))
    np.testing.assert_array_equal(dataset.train_images[..., 0], sample.arrays[0])
    np.testing.assert_array_equal(dataset.test_labels, sample.arrays[3])


class Trap:
    """An object that leaves a mark when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, (Trap.mark,)


@pytest.mark.parametrize("kind", ["npz with an object array", "bare pickle", "npy with objects"])
def test_a_pickle_is_never_loaded_even_with_the_right_hash(kind, tmp_path):
    import pickle

    Trap.mark = str(tmp_path / "sprung")
    objects = np.array([Trap()], dtype=object)
    if kind == "bare pickle":
        content = pickle.dumps(Trap())
    elif kind == "npy with objects":
        file = io.BytesIO()
        np.save(file, objects, allow_pickle=True)
        content = file.getvalue()
    else:
        content = npz(x_train=objects, y_train=objects, x_test=objects, y_test=objects)
    (tmp_path / "one.npz").write_bytes(content)
    with pytest.raises(DataError, match=r"does not hold one.* Delete it\."):
        read_set(Place("a folder", tmp_path, "Delete it."), one_file_set(content))
    assert not (tmp_path / "sprung").exists()


def test_npz_with_other_arrays_is_refused():
    shapes = {"x": (2, 2)}
    good = np.zeros((2, 2), np.uint8)
    assert parse_npz(npz(x=good), shapes)[0].shape == (2, 2)
    for content in (npz(y=good), npz(x=good[0]), npz(x=good.astype(np.float32)), b"", b"PK\x03\x04", npz(x=good)[:-9]):
        with pytest.raises(ValueError, match=r"expected|pickle|No data"):
            parse_npz(content, shapes)
    file = io.BytesIO()
    np.save(file, good)
    with pytest.raises(ValueError, match="single array"):
        parse_npz(file.getvalue(), shapes)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=3), st.randoms())
def test_idx_values_come_back(shape, random):
    values = bytes(random.randrange(256) for _ in range(int(np.prod(shape))))
    content = bytes([0, 0, 8, len(shape)]) + b"".join(n.to_bytes(4, "big") for n in shape) + values
    array = parse_idx(content, tuple(shape))
    assert array.shape == tuple(shape)
    assert array.tobytes() == values


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\0\0\x09\1\0\0\0\2ab", "idx header"),  # signed bytes
        (b"\0\0\x08\2\0\0\0\2ab", "idx header"),  # another number of dimensions
        (b"\0\0\x08\1\0\0\0\3ab", "idx header"),  # another size
        (b"\0\0\x08\1\0\0", "idx header"),
        (b"", "idx header"),
        (b"\0\0\x08\1\0\0\0\2a", "2 values .* found 1"),
        (b"\0\0\x08\1\0\0\0\2abc", "2 values .* found 3"),
    ],
)
def test_idx_with_another_header_or_size_is_refused(content, words):
    with pytest.raises(ValueError, match=words):
        parse_idx(content, (2,))


def test_idx_with_wrong_header_names_the_folder_even_with_the_right_hash(sample, tmp_path):
    import dataclasses

    sample.write(tmp_path)
    spec = dataclasses.replace(sample.spec, image_shape=(3, 4))
    with pytest.raises(DataError, match=f"{tmp_path} does not hold sample: expected the idx header"):
        read_set(Place("a folder", tmp_path, "-"), spec)


CONTENT = bytes(range(256)) * 4
PACKED = gzip.compress(CONTENT, mtime=0)


@given(st.integers(0, len(PACKED) - 1), st.integers(1, 255))
def test_a_changed_byte_never_changes_what_is_read(position, change):
    damaged = bytearray(PACKED)
    damaged[position] ^= change
    try:
        found = unpacked_and_checked(bytes(damaged), expect("x.gz", CONTENT))
    except ValueError:
        return
    assert found == CONTENT  # the header's time stamp and the like may differ


@given(st.integers(0, len(PACKED) - 1))
def test_a_truncated_gzip_file_is_refused(length):
    with pytest.raises(ValueError, match="expected"):
        unpacked_and_checked(PACKED[:length], expect("x.gz", CONTENT))


@pytest.mark.parametrize("extra", [b"rubbish", gzip.compress(b"more", mtime=0)])
def test_something_after_the_contents_is_refused(extra):
    with pytest.raises(ValueError, match="expected"):
        unpacked_and_checked(PACKED + extra, expect("x.gz", CONTENT))


def test_a_gzip_bomb_does_not_explode():
    bomb = gzip.compress(bytes(100_000_000), 9)
    small = ExpectedFile("x.gz", 1_000_000, "0" * 64)
    assert len(bomb) < small.packed_limit
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="1,000,000 bytes of contents, found more"):
            unpacked_and_checked(bomb, small)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


def test_an_npz_bomb_is_refused_before_it_is_opened(tmp_path):
    path = tmp_path / "mnist.npz"
    path.write_bytes(npz(x_train=np.zeros(50_000_000, np.uint8)))
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"mnist\.npz is corrupt"):
            read_checked(path, MNIST.files[0], "-")
        assert tracemalloc.get_traced_memory()[1] < 20_000_000  # the file's own limit, not the 50 MB within
    finally:
        tracemalloc.stop()


def test_an_endless_file_is_not_read_to_its_end(tmp_path):
    path = tmp_path / "x.npz"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # sparse: a terabyte that takes no room
    with pytest.raises(DataError, match="expected at most 1,024 bytes"):
        read_checked(path, expect("x.npz", CONTENT), "-")


def test_wrong_contents_are_named_with_what_to_do(tmp_path):
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(CONTENT[::-1]))
    wanted, found = (hashlib.sha256(content).hexdigest() for content in (CONTENT, CONTENT[::-1]))
    with pytest.raises(DataError) as caught:
        read_checked(path, expect("x.gz", CONTENT), "Delete it.")
    assert str(caught.value) == (
        f"{path} is corrupt: expected contents with SHA-256 {wanted}, found {found}. Delete it."
    )


@pytest.mark.parametrize("kind", ["folder", "pipe", "broken link"])
def test_what_is_not_a_file_is_refused_without_waiting(kind, tmp_path):
    path = tmp_path / "x.gz"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"x\.gz: expected a regular file"):
        read_checked(path, expect("x.gz", CONTENT), "-")


def test_a_file_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    path = tmp_path / "x.gz"
    path.write_bytes(PACKED)

    def refuse(*arguments, **keywords):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(path), "open", refuse)  # root may read everything, so a mode cannot show it
    with pytest.raises(DataError, match=r"x\.gz cannot be read: Permission denied"):
        read_checked(path, expect("x.gz", CONTENT), "-")
