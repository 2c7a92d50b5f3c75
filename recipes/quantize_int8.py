"""What does INT8 buy, and cost?

Source: 000, GPU和其他加速卡
Claim: for inference FP16 or INT8 is usually enough; only training needs more. The source names no figure.
Expect: a CNN trained on Fashion-MNIST and quantized by the calls of Keras, LiteRT and ONNX Runtime: size, accuracy on
    real test images, latency with one thread; and its weights rounded by hand to ever fewer bits.
Holds not: where an engine has no int8 kernel for the processor, int8 gains no speed. Keras quantizes no convolutions.
Needs: TensorFlow; real images (tfperf data fashion_mnist); engines where installed (pip install 'tfperf[engines]').
Time: about 75 s on 2 cores; with --quick about 25 s.
Shows: rounded, quantize_in_keras, quantize_in_litert, quantize_in_onnx
Try: --model mlp: int8 takes a quarter of the bytes here too; an engine whose outputs differ too much is left out.
"""

import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

import keras
import numpy as np
import tensorflow as tf

from tfperf import Recipe, check_agreement
from tfperf.engines import Plan, Runner, build, find_engine, load_litert, load_onnx, missing, write_onnx
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
        batches = tf.data.Dataset.from_tensor_slices(examples).batch(1)
        converter.representative_dataset = batches.as_numpy_iterator
    return converter.convert()


def quantize_in_onnx(file, quantized):
    """Write an ONNX file with int8 weights; activations are scaled call by call."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(file, quantized, weight_type=QuantType.QInt8, op_types_to_quantize=["MatMul"])


TOLERANCE = 0.15  # largest error of an int8 output, by the largest output
LITERT, ONNX = (Plan(engine=name, threads=1) for name in ("litert", "onnx"))


def main(recipe: Recipe) -> None:
    """Quantize a net in three libraries, and measure size, latency and accuracy."""
    warnings.simplefilter("ignore", UserWarning)  # Keras names each layer that it cannot quantize
    tf.config.threading.set_intra_op_parallelism_threads(1)  # as the other libraries have
    opened, flags = recipe.open_model(), recipe.flags
    inputs, examples = opened.arrays, opened.batch_of(100)
    if not opened.is_yours:
        data = recipe.load_data(quick=(8192, 2000))
        images, tests = (part / np.float32(255) for part in (data.train_images, data.test_images))
        opened.net.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        opened.net.fit(images, data.train_labels, batch_size=128, epochs=1 if flags.quick else 2, verbose=0)
        inputs, examples = [tests[: flags.batch]], [images[:100]]
    with TemporaryDirectory() as place:
        ways = quantized(opened, Path(place), examples)
        for name in [name for name in ways if "int8" in name]:
            agreement = check_agreement(name, ways[name](*inputs), ways["Keras, float32"](*inputs), TOLERANCE)
            if not agreement.passed:
                recipe.finds(f"{agreement}: left out. Untrained nets, and outputs near 0, suffer most.")
                del ways[name]
        tolerances = {name: TOLERANCE if "int8" in name else 1e-4 for name in ways}
        comparison = recipe.compare(ways, *inputs, tolerance=tolerances, what="each library")
        if not opened.is_yours:
            count_right(recipe, opened.net, ways, tests, data.test_labels)
    for name, way in ways.items():
        recipe.fact(f"bytes on disk: {name}", way.size)
        float32 = f"{name.partition(',')[0]}, float32"
        if name != float32:
            ratio = comparison.ratio(float32, name)
            recipe.finds(
                f"{name}: {format_bytes(way.size)} instead of {format_bytes(ways[float32].size)}; {ratio.verdict}, "
                f"{ratio.estimate:.2f} times the speed of {float32}."
            )
    has = ", ".join(Environment.here().instructions_for("int8")) or "no instructions"
    recipe.finds(f"To multiply int8 this CPU has {has}. Only kernels that use such instructions gain speed.")
    recipe.corrects("INT8 is no longer the smallest type: Hopper has FP8, not Turing's INT4, and Blackwell has FP4.")
    recipe.plot(lambda figure: interval_plot(figure.subplots(), comparison, f"{opened.words}, batch {flags.batch}"))


def quantized(opened, place: Path, examples) -> dict[str, Runner]:
    """Quantize the net in each library there is, and load it there in float32 too; name -> its runner."""
    servable, copy = opened.servable, quantize_in_keras(opened.copy())
    ways = {"Keras, float32": run_in_keras(opened, opened.net), "Keras, int8": run_in_keras(opened, copy)}
    if missing(find_engine("litert")) is None:
        ways["LiteRT, float32"] = build(servable, LITERT, cache=place)
        servable.save(place / "net")
        for name, inputs in {"int8": None, "int8 with fixed scales": servable.named(examples)}.items():
            (place / name).mkdir()
            (place / name / "net.tflite").write_bytes(quantize_in_litert(str(place / "net"), inputs))
            ways[f"LiteRT, {name}"] = load_litert(place / name, servable.signature, LITERT, {})
    if missing(find_engine("onnx")) is None:
        ways["ONNX Runtime, float32"] = build(servable, ONNX, cache=place)
        (place / "onnx").mkdir()
        write_onnx(servable, place / "float32.onnx")
        quantize_in_onnx(place / "float32.onnx", place / "onnx" / "net.onnx")
        ways["ONNX Runtime, int8"] = load_onnx(place / "onnx", servable.signature, ONNX, {})
    return ways


def run_in_keras(opened, net) -> Runner:
    """Run the net in its graph, with outputs in the order of their names, as the other libraries give them."""
    graph, outputs_by_name = tf.function(net), opened.servable.call(**opened.servable.named(opened.arrays))

    def run(*arrays):
        outputs = keras.tree.flatten(graph(*opened.arguments(arrays)))
        return [outputs[number].numpy() for number in np.argsort(list(outputs_by_name))]

    size = sum(np.asarray(weight).nbytes for weight in net.weights)
    return Runner(Plan(engine="graph"), opened.servable.signature, run, proof={}, size=size)


def count_right(recipe: Recipe, net, ways: dict[str, Runner], images, labels) -> None:
    """Count what each way gets right on real images, and the net with weights rounded by hand."""

    def share_right(way) -> float:
        outputs = [way(part)[0] for part in np.split(images, range(500, len(images), 500))]
        return float(np.mean(np.concatenate(outputs).argmax(axis=1) == labels))

    right, weights = {name: share_right(way) for name, way in ways.items()}, net.get_weights()
    lost = max(right["Keras, float32"] - share for share in right.values())
    for bits in (8, 6, 5, 4, 3, 2):
        net.set_weights([rounded(array, bits) if array.ndim > 1 else array for array in weights])
        right[f"weights in {bits} bits, by hand"] = share_right(ways["Keras, float32"])
    for name, share in right.items():
        recipe.fact(f"accuracy: {name}", share)
    recipe.table(("", "test images right"), [(name, f"{share:.2%}") for name, share in right.items()])
    recipe.finds(f"In int8 at most {100 * lost:.2f} points of accuracy are lost on {len(labels):,} real test images.")


if __name__ == "__main__":
    Recipe(__file__, batch=64, model="mnist_cnn").run(main)
