"""Does a runner cost more for each call than its engine driven by hand?

    python benchmarks/engines.py                    # 2 to 6 minutes; leave the machine alone meanwhile
    python benchmarks/engines.py --engine litert    # one engine
    python benchmarks/engines.py --json figures.json

For each engine, in a process of its own with one thread, `Runner.run` takes turns with the calls that an engineer
writes who knows the engine: inputs and outputs as arrays, everything that can be done once done before. mlp, batch 1:
the smaller the net, the more a call around it counts.

Exit code 0: every runner costs at most 3 % or 1 us more. 1: not so.
"""
# ruff: noqa: E402 - the path must be cleaned before anything is imported

import json
import multiprocessing
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

sys.path[:] = [folder for folder in sys.path if Path(folder).resolve() != Path(__file__).resolve().parent]
# else the names of these files would hide libraries

import numpy as np
import typer
from rich.console import Console

from tfperf.engines import ENGINES, Plan, Runner, build, find_engine, load, missing
from tfperf.engines.building import conversions_folder
from tfperf.exports.signature import Signature
from tfperf.measure import Comparison, compare
from tfperf.measure.results import Result, read_result, write_result
from tfperf.measure.words import format_ratio, format_seconds

MOST_SHARE, MOST_SECONDS = 0.03, 1e-6  # that a call may cost more: the larger of the two
NET, BATCH, SEED = "mlp", 1, 0
DEADLINE = 600.0
TIME_LIMIT = 30.0

Call = Callable[[np.ndarray], Any]
console = Console(highlight=False)


# ---------------------------------------------------------------- by hand


def predict_by_hand(net: Any, _: Path, __: Runner) -> Call:
    return lambda x: net.predict(x, batch_size=len(x), verbose=0)


def eager_by_hand(net: Any, _: Path, __: Runner) -> Call:
    import tensorflow as tf

    return lambda x: net(tf.convert_to_tensor(x), training=False).numpy()


def graph_by_hand(net: Any, _: Path, __: Runner, **options: Any) -> Call:
    import tensorflow as tf

    function = tf.function(lambda x: net(x, training=False), **options)
    return lambda x: function(tf.convert_to_tensor(x)).numpy()


def xla_by_hand(net: Any, folder: Path, runner: Runner) -> Call:
    return graph_by_hand(net, folder, runner, jit_compile=True)


def saved_model_by_hand(_: Any, folder: Path, __: Runner) -> Call:
    import tensorflow as tf

    loaded = tf.saved_model.load(str(folder))
    serve = loaded.signatures["serving_default"]
    (given,), (taken,) = serve.structured_input_signature[1], serve.structured_outputs

    def call(x: np.ndarray) -> np.ndarray:
        return serve(**{given: tf.convert_to_tensor(x)})[taken].numpy()

    call.keeps = loaded  # type: ignore[attr-defined]  # its function holds the variables weakly
    return call


def frozen_by_hand(_: Any, folder: Path, __: Runner) -> Call:
    import tensorflow as tf
    from tensorflow.core.protobuf import config_pb2

    definition = tf.compat.v1.GraphDef.FromString((folder / "graph.pb").read_bytes())
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(definition, name="")
    tensors = json.loads((folder / "tensors.json").read_text(encoding="utf-8"))
    config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    config.experimental.executor_type = "SINGLE_THREADED_EXECUTOR"
    session = tf.compat.v1.Session(config=config, graph=graph)
    (given,) = [name for key, name in tensors.items() if key.startswith("inputs/")]
    (taken,) = [name for key, name in tensors.items() if key.startswith("outputs/")]
    return session._make_callable_from_options(config_pb2.CallableOptions(feed=[given], fetch=[taken]))


def litert_by_hand(_: Any, folder: Path, __: Runner) -> Call:
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(folder / "net.tflite"), num_threads=1)
    interpreter.allocate_tensors()
    given, taken = interpreter.get_input_details()[0]["index"], interpreter.get_output_details()[0]["index"]

    def call(x: np.ndarray) -> np.ndarray:
        interpreter.set_tensor(given, x)
        interpreter.invoke()
        return interpreter.get_tensor(taken)

    return call


def onnx_by_hand(_: Any, folder: Path, __: Runner) -> Call:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(folder / "net.onnx"), options, providers=["CPUExecutionProvider"])
    given = session.get_inputs()[0].name
    return lambda x: session.run(None, {given: x})


def openvino_by_hand(_: Any, folder: Path, __: Runner) -> Call:
    import openvino

    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
        "INFERENCE_NUM_THREADS": 1,
        "INFERENCE_PRECISION_HINT": "f32",
    }
    request = openvino.Core().compile_model(str(folder / "net.xml"), "CPU", settings).create_infer_request()

    def call(x: np.ndarray) -> np.ndarray:
        request.set_input_tensor(openvino.Tensor(x, shared_memory=True))
        request.infer()
        return request.get_output_tensor().data

    return call


def compiled_by_hand(_: Any, __: Path, runner: Runner) -> Call:
    """The library's one function, called through ctypes on memory where the inputs lie already."""
    native = runner._close.__self__  # type: ignore[union-attr]
    handle = native._handle if hasattr(native, "_handle") else native._engine.handle
    call = native._library.tfperf_run
    return lambda _: call(handle)


BY_HAND: dict[str, Callable[[Any, Path, Runner], Call]] = {
    "predict": predict_by_hand,
    "eager": eager_by_hand,
    "graph": graph_by_hand,
    "xla": xla_by_hand,
    "saved_model": saved_model_by_hand,
    "frozen": frozen_by_hand,
    "litert": litert_by_hand,
    "onnx": onnx_by_hand,
    "openvino": openvino_by_hand,
    "c_api": compiled_by_hand,
    "xla_aot": compiled_by_hand,
}


# ---------------------------------------------------------------- one engine, in its own process


def convert_all(names: list[str], file: Path) -> None:
    """Convert the net for each engine, in a process whose TensorFlow nobody is timed with."""
    from tfperf.engines.conversions import Conversions
    from tfperf.exports import open_model

    servable = open_model(NET, seed=SEED)
    conversions = Conversions(servable, conversions_folder())
    folders = {name: str(conversions.folder(plan_for(name))) for name in names if find_engine(name).format}
    file.write_text(
        json.dumps({"signature": servable.signature.model_dump_json(), "folders": folders}), encoding="utf-8"
    )


def measure_one(name: str, converted: dict[str, Any], file: Path, time_limit: float) -> None:
    """Write what a runner and the engine by hand take."""
    plan, signature = plan_for(name), Signature.model_validate_json(converted["signature"])
    net, folder = None, Path()
    if find_engine(name).format:
        folder = Path(converted["folders"][name])
        runner = load(folder, signature, plan)
    else:
        from tfperf.engines.tensorflow_runtime import use_threads
        from tfperf.exports import open_model

        use_threads(1)
        servable = open_model(NET, seed=SEED)
        net, runner = servable.net, build(servable, plan)
    (x,) = signature.random_inputs(BATCH)
    runner(x)
    call = BY_HAND[name](net, folder, runner)
    comparison = compare({f"{name} by hand": call, f"{name} runner": runner.run}, args=(x,), time_limit=time_limit)
    write_result(file, Result(name=f"engines {name}", comparisons=(comparison,)))


def plan_for(name: str) -> Plan:
    return Plan(engine=name, threads=1, batch=BATCH if find_engine(name).fixed_batch else None)


# ---------------------------------------------------------------- all


def main(
    engine: Annotated[str | None, typer.Option(help="Only this one.")] = None,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write the figures here too.")] = None,
    time_limit: Annotated[float, typer.Option(help="Seconds for each engine.")] = TIME_LIMIT,
) -> None:
    """Compare each engine's runner with the engine driven by hand."""
    here = [known.name for known in ENGINES if engine in (None, known.name) and not missing(known)]
    comparisons = []
    with tempfile.TemporaryDirectory() as scratch:
        converted, found = Path(scratch, "converted.json"), Path(scratch, "found.json")
        in_own_process(convert_all, here, converted)
        for name in here:
            in_own_process(measure_one, name, json.loads(converted.read_text(encoding="utf-8")), found, time_limit)
            comparisons += read_result(found).comparisons
            console.print(told(name, comparisons[-1]), markup=False)
    if json_path:
        write_result(json_path, Result(name="benchmark of engines", comparisons=tuple(comparisons)))
    raise typer.Exit(0 if all(cost(comparison) <= allowed(comparison) for comparison in comparisons) else 1)


def cost(comparison: Comparison) -> float:
    """Seconds that a call of the runner takes more."""
    hand, runner = comparison.measurements
    return hand.interval.estimate * (comparison.ratio(runner.name, hand.name).estimate - 1)


def allowed(comparison: Comparison) -> float:
    """Seconds that it may take more."""
    return max(MOST_SHARE * comparison.measurements[0].interval.estimate, MOST_SECONDS)


def told(name: str, comparison: Comparison) -> str:
    """One line for an engine."""
    hand, runner = comparison.measurements
    ratio, more = comparison.ratio(runner.name, hand.name), cost(comparison)
    verdict = "holds" if more <= allowed(comparison) else "DOES NOT HOLD"
    hands = format_seconds(hand.interval.estimate)
    return f"{name:12} by hand {hands:>9}, runner {format_ratio(ratio.interval)}, {more * 1e6:+.2f} us: {verdict}"


def in_own_process(function: Callable[..., None], *arguments: Any) -> None:
    """Call a function in a fresh process, which ends by the deadline."""
    process = multiprocessing.get_context("spawn").Process(target=function, args=arguments)
    process.start()
    try:
        process.join(DEADLINE)
    finally:
        process.kill()
    if process.exitcode != 0:
        raise SystemExit(f"{function.__name__} of {arguments[0]} failed with exit code {process.exitcode}")


if __name__ == "__main__":
    typer.run(main)
