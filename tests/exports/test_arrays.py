"""Inputs from files, without pickle."""

import io
import os
import resource
import zipfile

import numpy as np
import pytest

from tfperf.errors import ExportError
from tfperf.exports import read_inputs
from tfperf.exports.arrays import read_arrays
from tfperf.exports.signature import Signature, TensorForm

SIGNATURE = Signature(inputs=(TensorForm(name="x", shape=(None, 2), dtype="float32"),), outputs=())


def test_inputs_are_read_by_name(tmp_path):
    x = np.ones((3, 2), "float32")
    np.savez(tmp_path / "a.npz", x=x)
    (read,) = read_inputs(tmp_path / "a.npz", SIGNATURE)
    np.testing.assert_array_equal(read, x)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"y": np.ones((3, 2), "float32")}, r"expected the arrays x .* Found: y"),
        ({"x": np.ones((3, 3), "float32")}, r"\(3, 3\)"),
        ({"x": np.ones((3, 2), "int32")}, "int32"),
        ({"x": np.array([["a", "b"]])}, "<U1"),
        ({"x": np.array([None, 1], dtype=object)}, "Python objects"),
    ],
)
def test_other_arrays_are_refused(tmp_path, arrays, message):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(ExportError, match=message):
        read_inputs(tmp_path / "a.npz", SIGNATURE)


@pytest.mark.parametrize("content", [b"", b"no zip", b"PK\x03\x04 cut"])
def test_what_is_no_such_file_is_refused(tmp_path, content):
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(ExportError, match=r"expected an \.npz"):
        read_inputs(tmp_path / "a.npz", SIGNATURE)


def test_a_single_array_and_a_missing_file_are_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.ones(2))
    with pytest.raises(ExportError, match="a single array"):
        read_inputs(tmp_path / "a.npy", SIGNATURE)
    with pytest.raises(ExportError, match="cannot be read"):
        read_inputs(tmp_path / "missing.npz", SIGNATURE)


def npy(array):
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def claiming(shape, dtype="<f4", version=b"\x01\x00"):
    """An array's file whose header claims a shape, and that holds 24 bytes."""
    header = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (63 - (len(header) + 10) % 64) + b"\n"
    return b"\x93NUMPY" + version + len(header).to_bytes(2, "little") + header + bytes(24)


GOOD = npy(np.ones((3, 2), "float32"))


def zipped(path, *members, method=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members:
            archive.writestr(name, content)


@pytest.mark.parametrize(
    ("member", "words"),
    [
        (claiming((10**13, 2)), "claims"),
        (claiming((-1, 2)), "claims"),
        (claiming((2**31, 2**31, 2**31)), "claims"),
        (claiming((10**12,), "|S0"), "claims"),
        (claiming((3, 1)), "claims"),
        (claiming((3, 2), "|O"), "Python objects"),
        (claiming((3, 2), "nonsense"), "descr"),
        (claiming("(" * 3000 + ")" * 3000), "header"),
        (claiming((3, 2), version=b"\x09\x00"), "version"),
        (GOOD[:-1], "claims"),
        (GOOD[:20], "header"),
        (GOOD + b"more", "claims"),
        (b"", "magic"),
    ],
    ids=range(13),
)
def test_a_header_that_lies_is_refused_before_memory_is_taken(tmp_path, member, words):
    zipped(tmp_path / "a.npz", ("x.npy", member))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ExportError, match=words) as refused:
        read_inputs(tmp_path / "a.npz", SIGNATURE)
    assert len(str(refused.value)) < 500
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024  # KiB


def test_a_zip_that_no_savez_writes_is_refused(tmp_path, recwarn):
    path = tmp_path / "a.npz"
    for members, words in (
        ([("x.npy", GOOD), ("x.npy", GOOD)], "comes twice"),
        ([("x.npy", GOOD), ("notes.txt", b"hello")], "notes.txt is no array"),
        ([], "Found: none"),
    ):
        zipped(path, *members)
        with pytest.raises(ExportError, match=words):
            read_inputs(path, SIGNATURE)
    for method in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        zipped(path, ("x.npy", GOOD), method=method)
        with pytest.raises(ExportError, match="by a method that NumPy does not use"):
            read_inputs(path, SIGNATURE)


@pytest.mark.parametrize(("place", "value", "words"), [(6, 1, "encrypted"), (8, 99, "method")])
def test_flags_of_a_zip_are_looked_at(tmp_path, place, value, words):
    """In both headers of the one member: bytes 6 and 8 of the local one, 8 and 10 of the central one."""
    zipped(tmp_path / "a.npz", ("x.npy", GOOD))
    content = bytearray((tmp_path / "a.npz").read_bytes())
    content[place] = content[content.index(b"PK\x01\x02") + place + 2] = value
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(ExportError, match=words):
        read_inputs(tmp_path / "a.npz", SIGNATURE)


def test_what_does_not_fit_into_memory_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr("tfperf.exports.arrays.available_memory", lambda: 2**20)
    zipped(tmp_path / "a.npz", ("x.npy", npy(np.zeros(2**18))), method=zipfile.ZIP_DEFLATED)
    with pytest.raises(ExportError, match="it unpacks to 2 MiB, and 1 MiB of memory are free"):
        read_inputs(tmp_path / "a.npz", SIGNATURE)


def test_a_zip_bomb_is_not_unpacked(tmp_path):
    zipped(tmp_path / "a.npz", ("x.npy", npy(np.zeros(2**25))), method=zipfile.ZIP_DEFLATED)
    with pytest.raises(ExportError, match=r"unpacks to 256 MiB, \d+ times its size"):
        read_inputs(tmp_path / "a.npz", SIGNATURE)


def test_a_checksum_that_is_wrong_is_told(tmp_path):
    zipped(tmp_path / "a.npz", ("x.npy", GOOD))
    content = (tmp_path / "a.npz").read_bytes()
    (tmp_path / "a.npz").write_bytes(content.replace(np.float32(1).tobytes(), np.float32(2).tobytes(), 1))
    with pytest.raises(ExportError, match="Bad CRC-32"):
        read_inputs(tmp_path / "a.npz", SIGNATURE)


def test_a_folder_and_a_pipe_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.npz")
    for path in (tmp_path, tmp_path / "pipe.npz"):
        with pytest.raises(ExportError, match="no regular file"):
            read_inputs(path, SIGNATURE)


def test_compressed_arrays_of_every_kind_are_read(tmp_path):
    arrays = {"a": np.arange(6.0).reshape(2, 3).T, "b": np.array(["é"]), "c": np.float64(1), "d": np.zeros((0, 3))}
    np.savez_compressed(tmp_path / "a.npz", **arrays)
    for name, read in read_arrays(tmp_path / "a.npz").items():
        np.testing.assert_array_equal(read, arrays[name])
