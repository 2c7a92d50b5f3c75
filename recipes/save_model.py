"""What is in a SavedModel, and who can load it?

Source: 000, 序列化
Claim: `tf.saved_model.save(net, 'my_mlp')` writes 64 KB of saved_model.pb beside assets/ and variables/. A compiled
    model can run on other devices and from other languages, and is usually faster.
Expect: the files of two ways to save, with sizes and signatures; the same outputs from a Python that has no Keras; what
    loading costs, and how fast the loaded function is.
Holds not: Keras 3's `load_model` does not read a SavedModel.
Needs: TensorFlow; no GPU, no data.
Time: about 30 s; with --quick about 15 s.
Shows: export, save_as_the_source, call_exported
Try:
    - --model resnet18: saved_model.pb grows with the number of layers, variables/ with the number of weights.
    - --batch 256: eager, graph and loaded function come closer, as the kernels take longer.
"""

import inspect
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf

from tfperf import Recipe, TfperfError
from tfperf.exports import writing_folder_whole
from tfperf.measure import format_bytes
from tfperf.report import interval_plot


def export(net, folder):
    """Write the net's forward pass and its weights, for programs that have TensorFlow but no Keras."""
    net.export(folder, verbose=False)


def save_as_the_source(net, folder):
    """Write every function that the net tracks, with the same lower-level call as the source."""
    tf.saved_model.save(net, str(folder))


def call_exported(folder, **inputs):
    """Load a SavedModel and call its signature, with nothing but TensorFlow."""
    loaded = tf.saved_model.load(folder)  # keep it while you call: it owns the weights
    return loaded.signatures["serving_default"](**inputs)


DEADLINE = 120  # seconds for the other Python, which imports TensorFlow first
WITHOUT_KERAS = """
import sys
sys.modules["keras"] = None  # makes every import of Keras fail
import numpy as np
import tensorflow as tf

{technique}
folder, arrays, outputs = sys.argv[1:]
inputs = {{name: tf.constant(array) for name, array in np.load(arrays).items()}}
np.savez(outputs, **{{name: tensor.numpy() for name, tensor in call_exported(folder, **inputs).items()}})
"""


def main(recipe: Recipe) -> None:
    """Save a net in two ways, look at the files, and load them elsewhere."""
    opened = recipe.open_model()
    exported = Path("saved_models", opened.name, "1")  # NAME/VERSION, as TensorFlow Serving wants it
    with writing_folder_whole(exported) as folder:
        if opened.is_yours:
            opened.servable.save(folder)  # takes nets of several arguments too, which net.export does not
        else:
            export(opened.net, folder)
    copies, count = list_files(recipe, exported), opened.net.count_params()
    recipe.finds(
        f"The {count:,} weights of {opened.words} take {format_bytes(4 * count)} in float32; "
        f"the export stores each {copies / max(count, 1):.0f} time{'s' * (copies > 1.5 * count)}."
    )
    if not opened.is_yours:
        saved = Path("saved_models", f"{opened.name}_as_saved_model", "1")
        with writing_folder_whole(saved) as folder:
            save_as_the_source(opened.net, folder)
        recipe.finds(f"tf.saved_model.save stores each {list_files(recipe, saved) / count:.0f} time.")
        recipe.corrects(
            "the 64 KB of saved_model.pb hold the graph; the weights are in variables/, and not in its listing."
        )

    inputs = {name: tf.constant(array) for name, array in opened.servable.named(opened.arrays).items()}
    expected = tf.nest.flatten(opened.servable.trace()(**inputs))
    outputs = run_without_keras(exported, inputs)
    recipe.agrees("fresh Python, no Keras", outputs, expected, 1e-6)
    exact = all(np.array_equal(one, other) for one, other in zip(outputs, expected, strict=True))
    recipe.fact("outputs without Keras equal to the last bit", exact)
    recipe.measure("load", tf.saved_model.load, str(exported), min_samples=5)

    loaded = tf.saved_model.load(str(exported))  # kept: its functions use the weights that it owns
    serve, graph = loaded.signatures["serving_default"], tf.function(opened.net)
    ways = {
        "the net, eager": lambda: tf.nest.flatten(opened.net(*opened.args)),
        "tf.function of the net": lambda: tf.nest.flatten(graph(*opened.args)),
        "loaded, signature": lambda: tf.nest.flatten(serve(**inputs)),
    }
    comparison = recipe.compare(ways, what="the loaded function beside the net")
    recipe.finds(
        f"Loaded and called by its signature, {opened.words} is "
        f"{comparison.ratio('the net, eager', 'loaded, signature').estimate:.1f} times as fast as eager: a SavedModel "
        "is a graph, and needs neither Keras nor the code that built it."
    )
    recipe.plot(lambda figure: interval_plot(figure.subplots(), comparison, f"One call of {opened.words}"))


def list_files(recipe: Recipe, path: Path) -> int:
    """Print the files with their sizes and what the signature takes and gives; how many numbers are stored."""
    files = sorted(file for file in path.rglob("*") if file.is_file())
    recipe.fact(f"bytes: {path}", sum(file.stat().st_size for file in files))
    rows = [(str(file.relative_to(path)), format_bytes(file.stat().st_size)) for file in files]
    recipe.table((str(path), "size"), rows)
    signature = tf.saved_model.load(str(path)).signatures["serving_default"]
    takes, gives = signature.structured_input_signature[1], signature.structured_outputs
    for verb, specs in (("takes", takes), ("gives", gives)):
        words = ", ".join(f"{name} {spec.shape} {spec.dtype.name}" for name, spec in specs.items())
        recipe.console.print(f"serving_default {verb} {words}", markup=False)
    return sum(
        int(np.prod(shape)) for _, shape in tf.train.list_variables(str(path / "variables" / "variables")) if shape
    )


def run_without_keras(folder: Path, inputs: dict) -> list[np.ndarray]:
    """Run the exported net by `call_exported` alone, in a fresh Python that cannot import Keras."""
    with tempfile.TemporaryDirectory() as scratch:
        given, taken = Path(scratch, "inputs.npz"), Path(scratch, "outputs.npz")
        np.savez(given, **{name: tensor.numpy() for name, tensor in inputs.items()})
        program = WITHOUT_KERAS.format(technique=inspect.getsource(call_exported))
        command = [sys.executable, "-c", program, str(folder), str(given), str(taken)]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=DEADLINE)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            why = " ".join(str(error.stderr or "no answer").split())[-300:]
            raise TfperfError(f"the Python without Keras could not run {folder}: {why}") from error
        return [*np.load(taken).values()]


if __name__ == "__main__":
    Recipe(__file__, batch=1, model="mlp").run(main)
