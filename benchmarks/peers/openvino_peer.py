"""OpenVINO alone: what it makes of the SavedModel, compiled with its defaults."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.given import Given, Loaded

__all__ = ["convert", "load"]

FILE = "net.xml"


def convert(folder: Path) -> None:
    """Write what `load` loads.

    Args:
        folder: has the SavedModel in saved_model.
    """
    import openvino

    openvino.save_model(openvino.convert_model(folder / "saved_model"), folder / FILE, compress_to_fp16=False)


def load(given: Given) -> Loaded:
    """Make it ready to call.

    In float32 it is told so, for unasked it computes in bfloat16 where the CPU has it. That is all it is told.
    """
    import openvino

    settings = {"INFERENCE_PRECISION_HINT": "f32"} if given.precision == "float32" else {}
    compiled = openvino.Core().compile_model(given.folder / FILE, "CPU", settings)
    request = compiled.create_infer_request()
    tensor = openvino.Tensor

    def call(x: NDArray[Any]) -> NDArray[Any]:
        request.set_input_tensor(tensor(x, shared_memory=True))
        request.infer()
        return request.get_output_tensor().data

    told = [str(compiled.get_property(name)) for name in ("INFERENCE_PRECISION_HINT", "INFERENCE_NUM_THREADS")]
    return Loaded(call, np.ascontiguousarray, f"OpenVINO {openvino.__version__}, {told[0]}, {told[1]} threads")
