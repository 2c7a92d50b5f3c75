"""ONNX Runtime alone: the file of tf2onnx, and a session with its default options."""

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.given import Given, Loaded

__all__ = ["convert", "load"]

FILE = "net.onnx"


def convert(net: Any, folder: Path) -> None:
    """Write what `load` loads, for batches of one."""
    import tensorflow as tf
    import tf2onnx

    function = tf.function(lambda x: net(x, training=False))
    given = [tf.TensorSpec((1, *net.input_shape[1:]), tf.float32, name="x")]
    tf2onnx.convert.from_function(function, given, opset=18, output_path=str(folder / FILE))


def load(given: Given) -> Loaded:
    """Make it ready to call."""
    import onnxruntime

    session = onnxruntime.InferenceSession(given.folder / FILE, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    words = f"ONNX Runtime {onnxruntime.__version__}, default options"
    return Loaded(lambda x: session.run(None, {name: x})[0], np.ascontiguousarray, words)
