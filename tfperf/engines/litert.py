"""LiteRT, which was TensorFlow Lite: an interpreter of few megabytes, with the kernels of XNNPACK."""

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
from numpy.typing import NDArray

from tfperf.engines.plan import Plan
from tfperf.engines.runner import Arrays, Runner
from tfperf.errors import EngineError, shortened
from tfperf.exports.signature import SIGNATURE_NAME, Signature

if TYPE_CHECKING:
    from tfperf.exports.servable import Servable

__all__ = ["convert", "load"]

FILE = "net.tflite"


def convert(servable: "Servable", plan: Plan, examples: Sequence[NDArray[Any]], folder: Path) -> dict[str, str]:
    """Write the net for LiteRT.

    From a SavedModel: what `TFLiteConverter.from_concrete_functions` made of a net gave NaN, and no error.
    """
    import tensorflow as tf

    with TemporaryDirectory() as place:
        servable.save(Path(place), plan.fixed_batch)
        converter = tf.lite.TFLiteConverter.from_saved_model(place, signature_keys=[SIGNATURE_NAME])
        if plan.precision != "float32":
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        if plan.precision == "float16":
            converter.target_spec.supported_types = [tf.float16]
        if plan.precision == "int8_static":
            batches = servable.batches(examples, plan.fixed_batch or 1)
            converter.representative_dataset = lambda: ((SIGNATURE_NAME, one) for one in batches)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the converter calibrates with an interpreter it warns of
            content = converter.convert()
    (folder / FILE).write_bytes(content)
    return {"precision": _prove_precision(content, plan)}


def load(folder: Path, signature: Signature, plan: Plan, proof: Mapping[str, str]) -> Runner:
    """Load it; another batch than the last call's resizes the inputs first."""
    from ai_edge_litert.interpreter import Interpreter

    process = psutil.Process()
    threads_before = process.num_threads()
    interpreter = Interpreter(str(folder / FILE), num_threads=plan.threads)
    inputs, outputs = _indices(interpreter, signature)
    set_tensor, get_tensor, invoke = interpreter.set_tensor, interpreter.get_tensor, interpreter.invoke
    shapes: list[tuple[int, ...]] = []

    def resize(arrays: Sequence[Any]) -> None:
        shapes.clear()
        for index, array in zip(inputs, arrays, strict=True):
            interpreter.resize_tensor_input(index, array.shape)
        interpreter.allocate_tensors()
        shapes.extend(array.shape for array in arrays)

    if len(inputs) == len(outputs) == 1:  # the usual net, for which a loop would be an eighth of the call
        (given,), (taken,) = inputs, outputs

        def run(*arrays: Any) -> Arrays:
            (array,) = arrays
            if shapes != [array.shape]:
                resize(arrays)
            set_tensor(given, array)
            invoke()
            return (get_tensor(taken),)

    else:

        def run(*arrays: Any) -> Arrays:
            if shapes != [array.shape for array in arrays]:
                resize(arrays)
            for index, array in zip(inputs, arrays, strict=True):
                set_tensor(index, array)
            invoke()
            return tuple([get_tensor(index) for index in outputs])

    try:
        run(*signature.random_inputs(plan.batch or 1))
    except (RuntimeError, ValueError) as error:
        raise EngineError(f"{plan} cannot run the net: {shortened(error)}") from error
    started = process.num_threads() - threads_before
    threads = f"asked for {plan.threads or 'its own choice'}; it started {started} beside the caller's"
    return Runner(plan, signature, run, proof={**proof, "threads": threads}, size=(folder / FILE).stat().st_size)


def _indices(interpreter: Any, signature: Signature) -> tuple[list[int], list[int]]:
    """The tensors of the inputs and of the outputs, in the order of the signature."""
    runner = interpreter.get_signature_runner(SIGNATURE_NAME)
    inputs, outputs = runner.get_input_details(), runner.get_output_details()
    return (
        [int(inputs[form.name]["index"]) for form in signature.inputs],
        [int(outputs[form.name]["index"]) for form in signature.outputs],
    )


def _prove_precision(content: bytes, plan: Plan) -> str:
    """How many tensors of the converted net have which type, in words.

    Raises:
        EngineError: none has the plan's.
    """
    from ai_edge_litert.interpreter import Interpreter

    details = Interpreter(model_content=content).get_tensor_details()
    types = Counter(np.dtype(tensor["dtype"]).name for tensor in details)
    wanted = plan.precision.removesuffix("_static")
    if not types[wanted]:
        found = ", ".join(f"{count} {name}" for name, count in sorted(types.items()))
        raise EngineError(f"{plan}: expected tensors in {wanted}, the converter made {found}; the net may be too small")
    return f"{types[wanted]} of {types.total()} tensors in {wanted}"
