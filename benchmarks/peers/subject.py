"""A net with its weights, its inputs and its answers, in memory and in the files that peers load."""

import contextlib
import io
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
from numpy.typing import NDArray

from benchmarks.peers import nets
from benchmarks.peers.litert_peer import convert as convert_for_litert
from benchmarks.peers.onnx_peer import convert as convert_for_onnx
from benchmarks.peers.openvino_peer import convert as convert_for_openvino
from tfperf.exports.servable import Servable
from tfperf.trials.process import Origin, store_arrays

__all__ = ["Subject", "prepare"]

INPUTS = 8
"""That answers are checked on; the first is the one to measure with."""


class Subject(NamedTuple):
    """What all are compared on."""

    name: str
    servable: Servable
    origin: Origin
    """How a process of tfperf opens the net again."""
    inputs: NDArray[Any]
    """(INPUTS, ...)"""
    reference: NDArray[Any]
    """What the net answers in Keras, called eagerly in float32; (INPUTS, ...)."""
    folder: Path
    """With weights.npz, inputs.npz, and the net as each converter has made it."""


def prepare(name: str, folder: Path) -> Subject:
    """Build a net, and write what the peers load into an empty folder.

    Converted for batches of one, for which OpenVINO and ONNX Runtime are faster than for any.
    """
    net = nets.build(name)
    servable = Servable.from_net(net)
    (inputs,) = servable.signature.random_inputs(INPUTS)
    (reference,) = servable.reference([inputs])
    np.savez(folder / "weights.npz", **nets.weights_of(net))
    store_arrays(folder / "inputs.npz", [inputs])
    with contextlib.redirect_stdout(io.StringIO()):  # Keras tells what it has written
        one = [keras.InputSpec(shape=(1, *net.input_shape[1:]), dtype="float32")]
        net.export(folder / "saved_model", verbose=False, input_signature=one)
    convert_for_onnx(net, folder)
    convert_for_openvino(folder)
    convert_for_litert(folder)
    origin = Origin(nets.model_of(name))
    return Subject(name, servable, origin, inputs, reference, folder)
