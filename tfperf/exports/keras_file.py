"""Nets in .keras files: what a file claims is checked before memory is taken for it, and no code in it is run."""

import json
import math
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from tfperf.errors import ExportError, shortened
from tfperf.exports.arrays import check_unpacking
from tfperf.measure.words import format_bytes

__all__ = ["read_keras_file"]

LARGEST_CONFIG = 2**26
"""Bytes of the layers' description; that of the largest nets of Keras has a hundredth of it."""

WEIGHTS = "model.weights"
"""What the names of the members begin with that hold weights."""

MOST_PACKED = 8
"""Times that weights may be larger than their file, which somebody may have compressed."""

SLACK = 2**20
"""Bytes of weights for which that does not matter."""


def read_keras_file(path: Path, *, compiled: bool = False) -> Any:
    """The net of a .keras file.

    Args:
        compiled: whether it is compiled as it was when it was saved, with its optimizer and loss.

    Raises:
        ExportError: it is missing, damaged, claims more than it holds, or needs Python code that it brings along.
    """
    if not path.is_file():
        raise ExportError(f"expected a .keras file, {path} does not exist")
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            check_unpacking(members)
            config = _config_of(archive)
        _check_claims(config, sum(one.file_size for one in members if one.filename.startswith(WEIGHTS)))
        net = keras.saving.load_model(path, compile=compiled, safe_mode=True)
        if not isinstance(net, keras.Model):
            raise ValueError(f"it holds a {type(net).__name__}, which is no keras.Model")
        return net
    except Exception as error:  # whatever zipfile, h5py, Keras and TensorFlow say to a damaged file
        why = shortened(error)
        if "safe_mode" in str(error) or "unsafe" in str(error).lower():
            why = "it holds Python code, as of a Lambda layer, which is never run; pass file.py:callable"
        raise ExportError(f"expected a .keras file that Keras can load. Received: {path}: {why}") from error


def _config_of(archive: zipfile.ZipFile) -> Any:
    """The description of the layers."""
    member = archive.getinfo("config.json")
    if member.file_size > LARGEST_CONFIG:
        raise ValueError(f"its {member.filename} has {format_bytes(member.file_size)}")
    return json.loads(archive.read(member))


def _check_claims(config: Any, held: int) -> None:
    """Refuse layers with more weights than the file holds: Keras would make all of them, at random, before it looks.

    Args:
        config: of the net.
        held: bytes of the members that hold weights.

    Raises:
        ValueError: says how many bytes are claimed, and how many there are. And whatever building raises.
    """
    with ThreadPoolExecutor(1) as thread:  # Keras keeps a list for each thread of what it is to make later
        claimed = thread.submit(_claimed, config).result()
    if claimed > MOST_PACKED * held + SLACK:
        raise ValueError(f"its layers have {format_bytes(claimed)} of weights, and the file holds {format_bytes(held)}")


def _claimed(config: Any) -> int:
    """Bytes of all weights of a net, which is built without making them."""
    plain = {key: value for key, value in config.items() if key != "compile_config"}
    try:
        with keras.StatelessScope(initialize_variables=False):
            net = keras.saving.deserialize_keras_object(plain, safe_mode=True)
    except ValueError as error:
        if "stateless scope" not in str(error):
            raise
        return 0  # a layer that keeps a state from call to call, which cannot be built so
    return sum(math.prod(one.shape) * tf.as_dtype(one.dtype).size for one in getattr(net, "weights", ()))
