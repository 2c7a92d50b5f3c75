"""ONNX Runtime."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from tfperf.engines.plan import Plan
from tfperf.engines.runner import Runner
from tfperf.errors import EngineError, shortened
from tfperf.exports.signature import Signature
from tfperf.native.processor import saturates_int8

if TYPE_CHECKING:
    from tfperf.exports.servable import Servable

__all__ = ["convert", "load", "target", "write_onnx"]

FILE = "net.onnx"

OPSET = 18
"""Version of ONNX's operations: the newest that tf2onnx writes."""

QUANTIZING = ("DynamicQuantizeLinear", "QuantizeLinear")
"""Operations that give int8."""


def target(plan: Plan) -> str:
    """What the conversions of this machine depend on."""
    return "weights of 7 bits" if plan.precision in ("int8", "int8_static") and saturates_int8() else ""


def convert(servable: "Servable", plan: Plan, examples: Sequence[NDArray[Any]], folder: Path) -> dict[str, str]:
    """Write the net as ONNX, quantized if the plan says so."""
    import onnx

    with TemporaryDirectory() as place:
        float32 = Path(place) / FILE
        write_onnx(servable, float32, plan.fixed_batch)
        if plan.precision == "float32":
            (folder / FILE).write_bytes(float32.read_bytes())
        else:
            _quantize(float32, folder / FILE, servable, plan, examples)
    nodes = Counter(node.op_type for node in onnx.load(str(folder / FILE)).graph.node)
    quantizing = sum(nodes[name] for name in QUANTIZING)
    if plan.precision != "float32" and not quantizing:
        raise EngineError(f"{plan}: expected operations that can be quantized, the net has none")
    return {"precision": f"{quantizing} tensors made int8 in {nodes.total()} operations"}


def write_onnx(servable: "Servable", file: Path, batch: int | None = None) -> None:
    """Write the net in float32, inputs and outputs under their names in the signature, told apart.

    Args:
        batch: None: any.
    """
    import tensorflow as tf
    import tf2onnx

    import tfperf.engines.onnx_operations  # noqa: F401  # of which tf2onnx is told by that
    from tfperf.exports.graphs import with_constants

    servable = servable.named_as(servable.signature.told_apart)
    forms = servable.signature.inputs
    specs = [tf.TensorSpec(form.with_batch(batch), form.dtype, name=form.name) for form in forms]
    traced = _traced(servable, batch)
    names = sorted(traced.structured_outputs)
    # tf2onnx itself takes constants of layers for inputs, and cannot read loops that were lowered
    frozen = with_constants(traced, lower_control_flow=False)

    def positional(*tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        named = servable.named(tensors)
        answers = frozen(*(named[given.op.name] for given in frozen.inputs))
        return dict(zip(names, answers, strict=True))

    function = tf.function(positional, input_signature=specs, autograph=False)
    tf2onnx.convert.from_function(function, input_signature=specs, opset=OPSET, output_path=str(file))


def _traced(servable: "Servable", batch: int | None) -> Any:
    """A concrete function without functions that XLA must compile, as Keras's grouped convolutions are."""
    import tensorflow as tf

    traced = servable.trace(batch)
    if not any(function.attr["_XlaMustCompile"].b for function in traced.graph.as_graph_def().library.function):
        return traced
    tf.config.run_functions_eagerly(True)  # in a trace these are part of it then; tf2onnx cannot read calls of them
    try:
        return servable.trace(batch)
    finally:
        tf.config.run_functions_eagerly(False)


def load(folder: Path, signature: Signature, plan: Plan, proof: Mapping[str, str]) -> Runner:
    """Load it on the CPU or, where ONNX Runtime has it, CUDA."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    if plan.threads is not None:
        options.intra_op_num_threads, options.inter_op_num_threads = plan.threads, 1
    known = onnxruntime.get_available_providers()
    providers = [name for name in ("CUDAExecutionProvider", "CPUExecutionProvider") if name in known]
    try:
        session = onnxruntime.InferenceSession(str(folder / FILE), options, providers=providers)
    except Exception as error:  # its errors have no common class but this
        raise EngineError(f"{plan} cannot load the net: {shortened(error)}") from error
    inputs = [form.name for form in signature.inputs]
    outputs = [form.name for form in signature.told_apart.outputs]
    call = session.run
    if len(inputs) == 1:
        (name,) = inputs

        def run(*arrays: Any) -> Any:
            return call(outputs, {name: arrays[0]})

    else:

        def run(*arrays: Any) -> Any:
            return call(outputs, dict(zip(inputs, arrays, strict=True)))

    threads = session.get_session_options().intra_op_num_threads
    words = f"{threads or 'its own choice'}, as the session's options say"
    proof = {**proof, "threads": words, "provider": session.get_providers()[0]}
    return Runner(plan, signature, run, proof=proof, size=(folder / FILE).stat().st_size)


def _quantize(file: Path, quantized: Path, servable: "Servable", plan: Plan, examples: Sequence[NDArray[Any]]) -> None:
    """Write a quantized copy: with scales from the examples, or taken call by call."""
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_dynamic,
        quantize_static,
    )
    from onnxruntime.quantization.shape_inference import quant_pre_process

    prepared = file.with_name("prepared.onnx")
    quant_pre_process(str(file), str(prepared), skip_symbolic_shape=True)
    if plan.precision == "int8":
        quantize_dynamic(str(prepared), str(quantized), weight_type=QuantType.QInt8, reduce_range=saturates_int8())
        return

    rest = servable.batches(examples, plan.fixed_batch or 1)

    class Examples(CalibrationDataReader):  # type: ignore[misc]
        def get_next(self) -> dict[str, Any] | None:
            return next(rest, None)

    quantize_static(
        str(prepared),
        str(quantized),
        Examples(),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        reduce_range=saturates_int8(),
    )
