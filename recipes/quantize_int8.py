"""What does INT8 buy, and cost?

Source: 000, GPU和其他加速卡
Claim: for inference FP16 or INT8 is usually enough; only training needs more. The source names no figure.
Expect: a CNN trained on Fashion-MNIST and quantized by the calls of Keras, LiteRT and ONNX Runtime: size, accuracy on
    real test images, latency; and its weights rounded by hand to ever fewer bits.
Holds not: for speed where an engine has no int8 kernel for the processor. Keras quantizes dense layers only.
Needs: TensorFlow; real images (tfperf data fashion_mnist); LiteRT and ONNX Runtime where they are installed
    (pip install 'tfperf[engines]'), one of them at least.
Time: about 60 s on 2 cores; with --quick about 25 s.
Shows: rounded, quantize_in_keras, quantize_in_litert, quantize_in_onnx
Try: --model mlp: it has dense layers only, which all three libraries quantize.
"""

import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

import keras
import numpy as np
import tensorflow as tf

from tfperf import Recipe, TfperfError, check_agreement
from tfperf.engines import find_engine, missing, write_onnx
from tfperf.measure import Environment, format_bytes
from tfperf.report import interval_plot


def rounded(weights, bits):
    """Round weights (..., outputs) to multiples of a scale, one for each output: that is what quantization is."""
    scale = np.abs(weights).max(axis=tuple(range(weights.ndim - 1)), keepdims=True) / (2 ** (bits - 1) - 1)
    return np.round(weights / np.maximum(scale, 1e-30)) * scale


def quantize_in_keras(net):
    """Have Keras keep the weights of dense layers and embeddings as int8, in the net itself."""
    net.quantize("int8")
    return net


def quantize_in_litert(folder, examples=None):
    """Convert a SavedModel with int8 weights; with examples activations have fixed scales too."""
    converter = tf.lite.TFLiteConverter.from_saved_model(folder)  # not from_concrete_functions, whose nets gave NaN
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if examples is not None:
        converter.representative_dataset = lambda: ({n: a[i : i + 1] for n, a in examples.items()} for i in range(100))
    return converter.convert()


def quantize_in_onnx(file, quantized):
    """Write an ONNX file with int8 weights; activations are scaled call by call."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(file, quantized, weight_type=QuantType.QInt8, op_types_to_quantize=["MatMul"])


BITS, TOLERANCE = (8, 6, 5, 4, 3, 2), 0.15  # largest error of an int8 output, by the largest output


def main(recipe: Recipe) -> None:
    """Quantize a net in three libraries, and measure size, outputs and latency."""
    warnings.simplefilter("ignore", UserWarning)  # Keras names each layer that it cannot quantize
    opened, data = recipe.open_model(), None
    inputs, examples = opened.servable.named(opened.arrays), opened.servable.named(opened.batch_of(100))
    if not opened.is_yours:
        data = recipe.load_data(quick=(8192, 2000))
        images, tests = (part / np.float32(255) for part in (data.train_images, data.test_images))
        opened.net.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        opened.net.fit(images, data.train_labels, batch_size=128, epochs=1 if recipe.flags.quick else 2, verbose=0)
        (input_name,) = inputs
        inputs, examples = {input_name: tests[: recipe.flags.batch]}, {input_name: images[:100]}
    with TemporaryDirectory() as place:
        ways, sizes = quantized(opened, Path(place), examples)
        if len(ways) == 2:
            raise TfperfError("expected LiteRT or ONNX Runtime. Received: neither; pip install 'tfperf[engines]'")
        expected = ways["Keras, float32"](**inputs)
        for name in [name for name in ways if "int8" in name]:
            agreement = check_agreement(name, ways[name](**inputs), expected, TOLERANCE)
            if not agreement.passed:
                recipe.finds(f"{agreement}: left out. A net that is not trained, or has outputs near 0, suffers so.")
                del ways[name], sizes[name]
        calls = {name: lambda way=way: way(**inputs) for name, way in ways.items()}
        tolerances = {name: TOLERANCE if "int8" in name else 1e-4 for name in ways}
        comparison = recipe.compare(calls, tolerance=tolerances, what="each library")
        for name, size in sizes.items():
            library, _, precision = name.partition(", ")
            recipe.fact(f"bytes on disk: {name}", size)
            if precision != "float32":
                ratio, whole = comparison.ratio(f"{library}, float32", name), sizes[f"{library}, float32"]
                recipe.finds(
                    f"{name}: {format_bytes(size)} instead of {format_bytes(whole)}; {ratio.verdict}, "
                    f"{ratio.estimate:.2f} times the speed of {library} in float32."
                )
        if data is not None:
            tell_accuracy(recipe, opened.net, ways, {input_name: tests}, data.test_labels)
    has = [name for name in ("avx512_vnni", "avx_vnni", "amx_int8", "i8mm") if name in Environment.here().cpu_features]
    recipe.finds(f"Speed depends on the kernels; to multiply int8 this CPU has {', '.join(has) or 'no instructions'}.")
    recipe.plot(
        lambda figure: interval_plot(figure.subplots(), comparison, f"{opened.words}, batch {recipe.flags.batch}")
    )


def quantized(opened, place: Path, examples: dict) -> tuple[dict, dict]:
    """Quantize the net in each library that is installed; name -> function of its inputs, name -> bytes on disk."""
    (place / "net").mkdir()
    opened.servable.save(place / "net")
    copy = quantize_in_keras(opened.copy())
    graphs = {"Keras, float32": tf.function(opened.net), "Keras, int8": tf.function(copy)}
    ways = {
        name: lambda graph=graph, **given: keras.tree.flatten(graph(*opened.arguments(list(given.values()))))[0]
        for name, graph in graphs.items()
    }
    sizes = {
        name: sum(np.asarray(one).nbytes for one in net.weights)
        for name, net in zip(graphs, (opened.net, copy), strict=True)
    }
    if missing(find_engine("litert")) is None:
        for name, model in {
            "LiteRT, float32": tf.lite.TFLiteConverter.from_saved_model(str(place / "net")).convert(),
            "LiteRT, int8": quantize_in_litert(str(place / "net")),
            "LiteRT, int8 with fixed scales": quantize_in_litert(str(place / "net"), examples),
        }.items():
            ways[name], sizes[name] = litert_call(model), len(model)
    if missing(find_engine("onnx")) is None:
        write_onnx(opened.servable, place / "float32.onnx")
        quantize_in_onnx(place / "float32.onnx", place / "int8.onnx")
        for precision in ("float32", "int8"):
            file = place / f"{precision}.onnx"
            ways[f"ONNX Runtime, {precision}"], sizes[f"ONNX Runtime, {precision}"] = (
                onnx_call(file),
                file.stat().st_size,
            )
    return ways, sizes


def litert_call(model: bytes):
    """Load a net in LiteRT."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=model, num_threads=1)
    signature = interpreter.get_signature_runner()
    return lambda **inputs: next(iter(signature(**inputs).values()))


def onnx_call(file: Path):
    """Load a net in ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    return lambda **inputs: session.run(None, inputs)[0]


def tell_accuracy(recipe: Recipe, net, ways: dict, tests: dict, labels) -> None:
    """Count what each way gets right on real images, and the net with weights rounded by hand."""
    ((name, images),), weights, right = tests.items(), net.get_weights(), {}
    for way, call in ways.items():
        outputs = np.concatenate([call(**{name: part}) for part in np.split(images, range(500, len(images), 500))])
        right[way] = float(np.mean(outputs.argmax(axis=1) == labels))
    for bits in BITS:
        net.set_weights([rounded(one, bits) if one.ndim > 1 else one for one in weights])
        outputs = net.predict(images, 500, verbose=0)
        right[f"weights in {bits} bits, by hand"] = float(np.mean(outputs.argmax(axis=1) == labels))
    for way, share in right.items():
        recipe.fact(f"accuracy: {way}", share)
    recipe.table(("", "test images right"), [(way, f"{share:.2%}") for way, share in right.items()])
    lost = max(right["Keras, float32"] - right[way] for way in ways)
    recipe.finds(f"In int8 at most {100 * lost:.2f} points of accuracy are lost on {len(labels):,} real test images.")


if __name__ == "__main__":
    Recipe(__file__, batch=64, model="mnist_cnn").run(main)
