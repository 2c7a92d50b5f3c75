"""The same net, exported once: which engine should run it?

Source: 000, 序列化
Claim: a compiled model can be saved, and run on other devices and from other front-end languages. It names no figure.
Expect: one table, each with one thread: eager Keras, the same net as a graph, in C, in LiteRT, ONNX Runtime and
    OpenVINO, and compiled ahead of time by XLA; the same outputs from all, and more speed than the graph alone brings.
Holds not: for a large net, most of whose time is arithmetic: there the engines come closer.
Needs: TensorFlow and a C++ compiler; LiteRT, ONNX Runtime and OpenVINO where they are installed
    (pip install 'tfperf[engines]'); no GPU, no data.
Time: about 90 s; with --quick about 60 s.
Shows: run_saved_model, run_litert, run_onnx, run_openvino
Try:
    - --batch 64: the arithmetic is a larger share, so the engines differ by less.
    - --model mnist_cnn: each engine has its own kernels for convolutions, so their order changes.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import keras
import numpy as np
import tensorflow as tf

from tfperf import Recipe
from tfperf.engines import Plan, find_engine, missing
from tfperf.measure import format_bytes
from tfperf.report import cost_table, survey_plots
from tfperf.trials import Origin, compare_engines


def run_saved_model(folder, x):
    """Run a SavedModel with TensorFlow alone."""
    loaded = tf.saved_model.load(folder)
    (output,) = loaded.signatures["serving_default"](tf.constant(x)).values()
    return output.numpy()


def run_litert(folder, x):
    """Run it in LiteRT: the smallest engine, made for phones."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=tf.lite.TFLiteConverter.from_saved_model(folder).convert(), num_threads=1)
    signature = interpreter.get_signature_runner()
    (name,) = signature.get_input_details()
    (output,) = signature(**{name: x}).values()
    return output


def run_onnx(net, x):
    """Run it in ONNX Runtime, through a conversion of the Keras net."""
    import onnxruntime
    import tf2onnx

    spec = [tf.TensorSpec([None, *x.shape[1:]], x.dtype, name="x")]
    model, _ = tf2onnx.convert.from_function(tf.function(net, input_signature=spec), input_signature=spec)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


def run_openvino(folder, x):
    """Run it in OpenVINO: ask for float32, or it may compute in bfloat16."""
    import openvino

    model = openvino.convert_model(folder)
    compiled = openvino.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return compiled([x])[0]


ENGINES = ("eager", "graph", "saved_model", "frozen", "c_api", "litert", "onnx", "openvino", "xla_aot")


def main(recipe: Recipe) -> None:
    """Run a net by each engine's own calls, then measure all in turns, each in a process of its own."""
    opened, batch = recipe.open_model(), recipe.flags.batch
    if len(opened.arrays) == 1:
        check_calls(recipe, opened)
    plans = [
        Plan(engine=name, threads=1, batch=batch if find_engine(name).fixed_batch else None) for name in ENGINES
    ]  # XLA ahead of time compiles for one shape
    (found,) = compare_engines(
        opened.servable,
        Origin(opened.model, seed=opened.seed),
        {batch: plans},
        {batch: opened.arrays},
        time_limit=recipe.flags.time_limit,
        on_step=lambda step: recipe.console.print(step, markup=False, style="dim"),
    )
    for row in found.trials:
        if row.reason:
            recipe.finds(f"{row.plan}: {row.status}: {row.reason}")
    for row in found.ran:
        recipe.add(row.agreement)
        recipe.fact(f"{row.plan.engine}: bytes on disk", row.size or 0)
        for what, words in row.proof.items():
            recipe.fact(f"{row.plan.engine}: {what}", words)
    recipe.add(found.comparison)
    recipe.console.print(cost_table(found))

    seconds = {row.plan.engine: row.measurement.interval.estimate for row in found.ran}
    fastest = min(seconds, key=seconds.get)
    recipe.finds(
        f"In one thread, with a batch of {batch}, {opened.words} runs {seconds['eager'] / seconds['graph']:.1f} times "
        f"as fast as eager in its graph, and {seconds['eager'] / seconds[fastest]:.0f} times in {fastest}: all agree."
    )
    grown = {
        row.plan.engine: row.measurement.memory.resident - row.measurement.memory.resident_before for row in found.ran
    }
    smallest = min(grown, key=grown.get)
    if "saved_model" in grown:
        recipe.finds(
            f"To run the same export TensorFlow takes {format_bytes(grown['saved_model'])} of memory, {smallest} "
            f"{format_bytes(grown[smallest])}; the weights are {format_bytes(4 * opened.net.count_params())}."
        )
    recipe.plot(lambda figure: survey_plots(figure, [found], f"{opened.name}, each engine in a process of its own"))


def check_calls(recipe: Recipe, opened) -> None:
    """Call each engine as the page shows it, and compare its outputs with the net's."""
    (x,), expected = opened.arrays, np.asarray(keras.tree.flatten(opened.net(*opened.args))[0])
    with TemporaryDirectory() as place:
        folder = str(Path(place, "net"))
        Path(folder).mkdir()
        opened.servable.save(Path(folder))
        calls = {
            "saved_model": lambda: run_saved_model(folder, x),
            "litert": lambda: run_litert(folder, x),
            "onnx": lambda: run_onnx(opened.net, x),
            "openvino": lambda: run_openvino(folder, x),
        }
        for name, call in calls.items():
            if missing(find_engine(name)) is None:
                recipe.agrees(f"{name}, by its own calls", call(), expected, 1e-4)


if __name__ == "__main__":
    Recipe(__file__, batch=1, model="mlp").run(main)
