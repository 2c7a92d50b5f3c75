"""LiteRT alone: what its converter makes of the SavedModel, in an interpreter with its defaults."""

from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.given import Given, Loaded

__all__ = ["convert", "load"]

FILE = "net.tflite"


def convert(folder: Path) -> None:
    """Write what `load` loads.

    Args:
        folder: has the SavedModel in saved_model.
    """
    import tensorflow as tf

    (folder / FILE).write_bytes(tf.lite.TFLiteConverter.from_saved_model(str(folder / "saved_model")).convert())


def load(given: Given) -> Loaded:
    """Make it ready to call."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(given.folder / FILE))
    interpreter.allocate_tensors()
    given, taken = interpreter.get_input_details()[0]["index"], interpreter.get_output_details()[0]["index"]

    def call(x: NDArray[Any]) -> NDArray[Any]:
        interpreter.set_tensor(given, x)
        interpreter.invoke()
        return interpreter.get_tensor(taken)

    return Loaded(call, np.ascontiguousarray, f"LiteRT {version('ai-edge-litert')}, default options")
