"""Inputs from files, without pickle."""

import numpy as np
import pytest

from tfperf.errors import ExportError
from tfperf.exports import read_inputs
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
