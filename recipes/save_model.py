"""What is in a SavedModel, and who can load it?

Command: python recipes/save_model.py, or tfperf run save_model
Needs: TensorFlow; no GPU, no data.
Time: about 30 s; with --quick about 15 s.
Source: tf.saved_model.save(net, 'my_mlp') writes 64 KB of saved_model.pb and a folder of variables; other
    programs and other languages can load them.
Expect: the files of two ways to save, with sizes and signatures; the same outputs, to the last bit, from a
    fresh Python that has no Keras; what loading costs, and how fast the loaded function is.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf

from tfperf import Benchmark, Recipe, TfperfError, check_agreement, compare, get_net
from tfperf.files import writing_folder_whole
from tfperf.measure.words import format_bytes

FOLDER = Path("saved_models")
LOADER_DEADLINE = 120  # seconds for the other Python, which imports TensorFlow first

# All that a program needs to use the exported net: TensorFlow alone. That Keras cannot be imported is enforced.
LOADER = """
import sys
sys.modules["keras"] = None  # makes every `import keras` fail
import numpy as np
import tensorflow as tf

folder, inputs, outputs = sys.argv[1:]
serve = tf.saved_model.load(folder).signatures["serving_default"]
(result,) = serve(features=tf.constant(np.load(inputs))).values()
np.save(outputs, result.numpy())
"""


def main(recipe: Recipe) -> None:
    """Save a net in two ways, look at the files, and load them elsewhere."""
    net = get_net(seed=recipe.flags.seed)
    generator = np.random.default_rng(recipe.flags.seed)
    x = generator.standard_normal((recipe.flags.batch, 512), dtype=np.float32)  # (batch, features)

    exported = FOLDER / "mlp" / "1"  # NAME/VERSION, as TensorFlow Serving wants it
    with writing_folder_whole(exported) as folder:
        net.export(folder, verbose=False)
    saved = FOLDER / "mlp_as_saved_model" / "1"
    with writing_folder_whole(saved) as folder:
        tf.saved_model.save(net, str(folder))

    stored = {}
    for title, path in (("net.export", exported), ("tf.saved_model.save, as in the source", saved)):
        recipe.console.print(f"\n{title}: {path}", markup=False)
        list_files(recipe, path)
        recipe.fact(f"{title}: bytes", sum(file.stat().st_size for file in path.rglob("*") if file.is_file()))
        names = tf.train.list_variables(str(path / "variables" / "variables"))
        stored[path] = sum(np.prod(shape) for _, shape in names if shape) / net.count_params()
    recipe.means(
        f"The {net.count_params():,} weights take {format_bytes(4 * net.count_params())} as float32. net.export stores "
        f"each {stored[exported]:.0f} times, under different names; tf.saved_model.save {stored[saved]:.0f} time."
    )

    with tempfile.TemporaryDirectory() as scratch:
        outputs = run_without_keras(exported, x, Path(scratch))
    expected = tf.function(net)(x).numpy()  # (batch, 2)
    recipe.console.print("\nAre the outputs of a Python without Keras the same?")
    recipe.add(check_agreement("fresh Python, no Keras", outputs, expected, tolerance=0.0))
    recipe.fact("outputs without Keras equal to the last bit", bool(np.array_equal(outputs, expected)))

    loading = Benchmark("load", time_limit=recipe.flags.time_limit / 4, min_samples=5)
    recipe.add(loading.measure(tf.saved_model.load, str(exported)))

    loaded = tf.saved_model.load(str(exported))  # kept: its functions use the variables that it owns
    serve = loaded.signatures["serving_default"]
    candidates = {
        "the net, eager": lambda x: net(x),
        "tf.function of the net": tf.function(net),
        "loaded, .serve": loaded.serve,
        "loaded, signature": lambda x: serve(features=x),
    }
    batch = tf.constant(x)
    for name, function in candidates.items():
        result = function(batch)
        recipe.add(check_agreement(name, result["output_0"] if isinstance(result, dict) else result, expected))
    with recipe.progress("the loaded function beside the net") as show:
        comparison = compare(candidates, args=(batch,), time_limit=recipe.flags.time_limit, on_progress=show)
    recipe.add(comparison)
    eager = comparison.ratio("the net, eager", "loaded, signature")
    recipe.means(
        f"Loaded and called by its signature, the net runs {eager.estimate:.1f} times as fast as eagerly: "
        "a SavedModel is a graph, and needs neither Keras nor the code that built it."
    )
    recipe.plot(lambda figure: draw(figure, comparison))


def list_files(recipe: Recipe, path: Path) -> None:
    """Print the files with their sizes, and what the signature takes and gives."""
    for file in sorted(file for file in path.rglob("*") if file.is_file()):
        recipe.console.print(f"  {format_bytes(file.stat().st_size):>10}  {file.relative_to(path)}", markup=False)
    signature = tf.saved_model.load(str(path)).signatures["serving_default"]
    for name, spec in signature.structured_input_signature[1].items():
        recipe.console.print(f"  serving_default takes {name}: {spec.shape} {spec.dtype.name}", markup=False)
    for name, spec in signature.structured_outputs.items():
        recipe.console.print(f"  serving_default gives {name}: {spec.shape} {spec.dtype.name}", markup=False)


def run_without_keras(folder: Path, x: np.ndarray, scratch: Path) -> np.ndarray:
    """Run the exported net in a fresh Python that cannot import Keras; its outputs, shape (batch, 2)."""
    np.save(scratch / "inputs.npy", x)
    command = [sys.executable, "-c", LOADER, folder, scratch / "inputs.npy", scratch / "outputs.npy"]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=LOADER_DEADLINE)
    except subprocess.CalledProcessError as error:
        raise TfperfError(f"the Python without Keras could not run {folder}: {error.stderr.strip()[-300:]}") from error
    return np.load(scratch / "outputs.npy")


def draw(figure, comparison) -> None:
    """Draw the time of one call in each of the ways."""
    from tfperf.report.plots import interval_plot

    interval_plot(figure.subplots(), comparison, "One call of get_net, saved and loaded")


if __name__ == "__main__":
    Recipe(__file__, batch=1).run(main)
