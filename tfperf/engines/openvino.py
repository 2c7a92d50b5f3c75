"""OpenVINO."""

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tfperf.engines import onnx
from tfperf.engines.catalog import find_engine, missing
from tfperf.engines.plan import Plan
from tfperf.engines.runner import Arrays, Runner
from tfperf.errors import EngineError, shortened
from tfperf.exports.signature import Signature
from tfperf.importing import absent

if TYPE_CHECKING:
    from tfperf.exports.servable import Servable

__all__ = ["convert", "load", "target"]

FILE = "net.xml"

CONVERTED_AS = {"bfloat16": "float32", "float16": "float32"}
"""Precision -> the one whose files it loads: OpenVINO lowers floats when it compiles."""

HINTS = {"float32": "f32", "bfloat16": "bf16", "float16": "f16", "int8_static": "f32"}
"""Precision -> what OpenVINO computes in where nothing is quantized. Unasked it takes bfloat16 where the CPU has it."""

TYPES = {"float32": ("f32",), "bfloat16": ("bf16",), "float16": ("f16",), "int8_static": ("i8", "u8")}
"""Precision -> how OpenVINO calls it."""

HEAVY = ("Convolution", "GroupConvolution", "MatMul", "FullyConnected")


def target(plan: Plan) -> str:
    """What the conversions of this machine depend on."""
    return onnx.target(plan)


def convert(servable: "Servable", plan: Plan, examples: Sequence[NDArray[Any]], folder: Path) -> dict[str, str]:
    """Write the net for OpenVINO, weights in float32; for int8, what ONNX Runtime's quantizer makes of it."""
    openvino = _import_openvino()
    with TemporaryDirectory() as place:
        if plan.precision == "int8_static":
            if wanted := missing(find_engine("onnx")):
                raise EngineError(f"{plan} is quantized by ONNX Runtime's tools, and {wanted}")
            onnx.convert(servable, plan, examples, Path(place))
            net = openvino.convert_model(str(Path(place) / onnx.FILE))
        else:
            servable.named_as(servable.signature.told_apart).save(Path(place), plan.fixed_batch)
            net = openvino.convert_model(place)
        openvino.save_model(net, str(folder / FILE), compress_to_fp16=False)
    return {}


def load(folder: Path, signature: Signature, plan: Plan, proof: Mapping[str, str]) -> Runner:
    """Compile it for the CPU.

    Inputs are read where they lie, outputs are given where OpenVINO wrote them.
    """
    openvino = _import_openvino()
    settings: dict[str, Any] = {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
        "INFERENCE_PRECISION_HINT": HINTS[plan.precision],
    }
    if plan.threads is not None:
        settings["INFERENCE_NUM_THREADS"] = plan.threads
    try:
        compiled = _core().compile_model(str(folder / FILE), "CPU", settings)
    except RuntimeError as error:
        raise EngineError(f"{plan} cannot load the net: {shortened(error)}") from error
    request = compiled.create_infer_request()
    inputs = [_place(compiled.inputs, form.name) for form in signature.inputs]
    outputs = [_place(compiled.outputs, form.name) for form in signature.told_apart.outputs]
    asarray = np.asarray
    tensor, give, infer, take = openvino.Tensor, request.set_input_tensor, request.infer, request.get_output_tensor

    def run(*arrays: Any) -> Arrays:
        in_rows = [asarray(array, order="C") for array in arrays]  # the same arrays, unless they lie in another order
        for place, array in zip(inputs, in_rows, strict=True):
            give(place, tensor(array, shared_memory=True))
        infer()
        return tuple([take(place).data for place in outputs])

    used = compiled.get_property("INFERENCE_NUM_THREADS")
    proof = {"precision": _prove_precision(compiled, plan), "threads": f"{used}, as the compiled net says"}
    return Runner(plan, signature, run, proof=proof, reuses_outputs=True)


@functools.cache
def _core() -> Any:
    """The one core of this process, never given up.

    With each core that compiles for a CPU its thread takes signals on a stack of that core's. Of two cores that go in
    the order in which they came, the first one's stack is used again though it is freed (2026.4, `SigAltStackSetup`):
    the next signal that Python handles, as Ctrl-C, then ends the process with a segmentation fault.
    """
    return _import_openvino().Core()


def _import_openvino() -> Any:
    """OpenVINO without its telemetry: that sends the operations of a net, and takes most of a conversion's time."""
    with absent("openvino_telemetry"):
        import openvino
    return openvino


def _place(ports: Sequence[Any], name: str) -> int:
    """Where among the inputs or outputs the one of this name is."""
    (place,) = [index for index, port in enumerate(ports) if name in port.get_names()]
    return place


def _prove_precision(compiled: Any, plan: Plan) -> str:
    """How many of the heavy operations compute in the plan's precision, as the compiled net tells.

    Raises:
        EngineError: there are some, and none does.
    """
    types: Counter[str] = Counter()
    for operation in compiled.get_runtime_model().get_ops():
        told = operation.get_rt_info()
        if told["layerType"].astype(str) in HEAVY:
            types[told["runtimePrecision"].astype(str)] += 1
    wanted = sum(types[name] for name in TYPES[plan.precision])
    if types and not wanted:
        found = ", ".join(f"{count} in {name}" for name, count in sorted(types.items()))
        raise EngineError(f"expected {plan.precision} from OpenVINO, which on this CPU chose {found}")
    return f"{wanted} of {types.total()} matrix products and convolutions in {plan.precision}"
