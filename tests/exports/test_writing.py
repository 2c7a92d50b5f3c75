"""Exports appear whole or not at all, in TensorFlow Serving's layout."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2

from tfperf.errors import ExportError
from tfperf.exports import export, verify
from tfperf.exports.manifest import EXTRA, MANIFEST, REFERENCE, Manifest
from tfperf.exports.warm_up import WARM_UP

KILLER = """
import sys
from tests.exports.conftest import sequential
from tfperf.exports import export
net = sequential()
export(net, sys.argv[1])  # all is loaded and traced once: what follows is the writing
print("ready", flush=True)
for _ in range(1000):
    export(net, sys.argv[1])
"""


def test_each_net_is_written_and_verified(net, tmp_path):
    folder = export(net, tmp_path)
    assert folder == tmp_path / net.name / "1"
    found = verify(folder)
    assert found.same_bits
    assert {form.shape[0] for form in found.manifest.signature.inputs} == {None}
    assert sorted(path.name for path in folder.iterdir()) == [
        "assets",
        EXTRA,
        "fingerprint.pb",
        "saved_model.pb",
        "variables",
    ]


def test_versions_count_up_and_are_never_replaced(small, tmp_path):
    assert [export(small, tmp_path).name for _ in range(2)] == ["1", "2"]
    assert export(small, tmp_path, version=7).name == "7"
    assert export(small, tmp_path).name == "8"
    with pytest.raises(ExportError, match="not there yet"):
        export(small, tmp_path, version=7)
    assert verify(tmp_path / "small").folder.name == "8"


def test_weights_are_stored_once(tmp_path):
    wide = keras.Sequential([keras.Input((256,)), keras.layers.Dense(1024)], name="wide")
    folder = export(wide, tmp_path)
    stored = sum(file.stat().st_size for file in folder.rglob("variables.data*"))
    assert stored < 1.1 * 4 * wide.count_params()


def test_warm_up_requests_are_those_of_the_documented_format(small, tmp_path):
    """Read without our classes: by the wire format of the fields that the .proto files number."""
    folder = export(small, tmp_path, warm_up=[1, 3])
    records = [record.numpy() for record in tf.data.TFRecordDataset(str(folder / WARM_UP))]
    assert len(records) == 2
    for record, batch in zip(records, [1, 3], strict=True):
        ((number, log),) = fields(record)
        assert number == 6  # PredictionLog.predict_log
        ((number, request),) = fields(log)
        assert number == 1  # PredictLog.request
        parts = fields(request)
        assert dict(fields(parts[0][1])) == {1: b"small", 3: b"serving_default"}  # ModelSpec
        number, entry = parts[1]
        assert number == 2  # PredictRequest.inputs
        inputs = dict(fields(entry))
        assert inputs[1] == b"features"
        tensor = tf.make_ndarray(tensor_pb2.TensorProto.FromString(inputs[2]))
        assert tensor.shape == (batch, 5)


def fields(message):
    """Numbers and contents of the fields of a protocol buffer that are all length-delimited."""
    found, position = [], 0
    while position < len(message):
        key, position = varint(message, position)
        assert key & 7 == 2
        length, position = varint(message, position)
        found.append((key >> 3, message[position : position + length]))
        position += length
    return found


def varint(message, position):
    value = shift = 0
    while True:
        byte = message[position]
        value |= (byte & 127) << shift
        position, shift = position + 1, shift + 7
        if not byte & 128:
            return value, position


def test_given_inputs_become_the_reference(small, tmp_path):
    x = np.full((3, 5), 0.25, "float32")
    folder = export(small, tmp_path, inputs=[x])
    with np.load(folder / REFERENCE) as arrays:
        np.testing.assert_array_equal(arrays["inputs/features"], x)
        np.testing.assert_allclose(arrays["outputs/logits"], small(x), rtol=1e-6)


def test_answers_that_are_not_finite_are_not_exported(small, tmp_path):
    with pytest.raises(ExportError, match="finite"):
        export(small, tmp_path, inputs=[np.full((1, 5), np.inf, "float32")])
    assert list(tmp_path.rglob("*")) == [tmp_path / "small"]


@pytest.mark.parametrize(
    "wrong", [{"name": "../up"}, {"name": ""}, {"name": ".hidden"}, {"version": 0}, {"warm_up": [0]}, {"inputs": []}]
)
def test_wrong_arguments_write_nothing(small, tmp_path, wrong):
    with pytest.raises(ValueError, match="expected"):
        export(small, tmp_path / "new", **wrong)
    assert not list(tmp_path.rglob("saved_model.pb"))


def test_a_full_disk_leaves_nothing(small, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tfperf.exports.writing.write_requests", fail)
    with pytest.raises(OSError, match="No space"):
        export(small, tmp_path)
    assert list(tmp_path.rglob("*")) == [tmp_path / "small"]


def test_what_c_programs_need_is_in_the_manifest(small, tmp_path):
    manifest = Manifest.read(export(small, tmp_path))
    assert manifest.tensors["inputs/features"].startswith("serving_default_features")
    assert ":" in manifest.tensors["outputs/logits"]


@pytest.mark.timeout(240)
def test_killed_while_it_writes_it_leaves_no_part(tmp_path):
    """Killed again and again at moments spread over the writing; each version there is whole."""
    generator = np.random.default_rng(0)
    for attempt in range(3):
        home = tmp_path / str(attempt)
        process = subprocess.Popen([sys.executable, "-c", KILLER, home], stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout.readline() == "ready\n"
            time.sleep(generator.uniform(0.0, 0.6))
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait(30)
            process.stdout.close()
        versions = [path for path in (home / "small").iterdir() if not path.name.startswith(".")]
        assert versions
        for version in versions:
            assert not list(Manifest.read(version).faults(version))


def test_the_manifest_is_the_last_file_written(small, tmp_path, monkeypatch):
    written = []
    digests = __import__("tfperf.exports.writing", fromlist=["x"]).digests_of
    monkeypatch.setattr("tfperf.exports.writing.digests_of", lambda folder: written.append(folder) or digests(folder))
    folder = export(small, tmp_path)
    assert written[0] != folder
    assert Path(folder, MANIFEST).exists()
