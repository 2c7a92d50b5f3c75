"""What does INT8 buy, and cost?

Source: 000, GPU和其他加速卡
Claim: for inference FP16 or INT8 is usually enough; only training needs more. The source names no figure.
Expect: a CNN trained on Fashion-MNIST, its weights rounded by hand to ever fewer bits, and then as int8 in three
    engines: a quarter of the size, accuracy within a point on the real test images, and what it does to latency.
Holds not: for speed where an engine has no int8 kernel for the processor.
Needs: TensorFlow; real images (tfperf data fashion_mnist); LiteRT, ONNX Runtime and OpenVINO where they are installed
    (pip install 'tfperf[engines]'), one of them at least.
Time: about 80 s on 2 cores; with --quick about 30 s.
Shows: rounded
Try: --batch 1: with one image a call, the share of the arithmetic is smaller, and so is the gain.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import keras
import numpy as np

from tfperf import Recipe, TfperfError, get_net, load
from tfperf.engines import TOLERANCES, Plan, build, find_engine, missing
from tfperf.engines.batches import in_batches
from tfperf.engines.process import Origin
from tfperf.engines.survey import survey
from tfperf.exports import Servable
from tfperf.measure import Environment
from tfperf.measure.words import format_bytes
from tfperf.report.engines import survey_plots

ENGINES = ("litert", "onnx", "openvino")
PRECISIONS = ("float32", "int8", "int8_static")  # int8: activations are scaled call by call; static: once for all
BITS = (8, 6, 5, 4, 3, 2)
MOST_LOST = 0.01  # of accuracy: one point
MOST_SIZE = 0.3  # of the file in float32: a quarter, and what is not weights
CALIBRATION = 256  # training images from which int8_static takes the range of each activation
CPU_FEATURES = {"avx512_vnni", "avx_vnni", "amx_int8", "i8mm"}  # of which any multiplies int8 by the dozen
QUICK_IMAGES = 8192


def rounded(weights: np.ndarray, bits: int) -> np.ndarray:
    """Weights (..., outputs) as the nearest of 2**bits - 1 multiples of a scale, one scale for each output."""
    most = 2 ** (bits - 1) - 1  # 127 of 8 bits
    scale = np.abs(weights).max(axis=tuple(range(weights.ndim - 1)), keepdims=True) / most
    return np.round(weights / np.maximum(scale, 1e-30)) * scale


def main(recipe: Recipe) -> None:
    """Train a net, make int8 of it in every engine, and measure size, accuracy and latency."""
    installed = [name for name in ENGINES if missing(find_engine(name)) is None]
    if not installed:
        raise TfperfError(f"expected one of {', '.join(ENGINES)}. Received: none; pip install 'tfperf[engines]'")
    data = load("fashion_mnist")
    if recipe.flags.quick:
        data = data.take(min(QUICK_IMAGES, len(data.train_images)), len(data.test_images))
    recipe.uses(data)
    keras.utils.set_random_seed(recipe.flags.seed)
    net = get_net("mnist_cnn", seed=recipe.flags.seed)
    optimizer, loss = keras.optimizers.Adam(), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    net.compile(optimizer, loss)
    train_images, images = (part / np.float32(255) for part in (data.train_images, data.test_images))
    net.fit(train_images, data.train_labels, batch_size=128, epochs=1 if recipe.flags.quick else 2, verbose=0)
    logits = net.predict(images, batch_size=1000, verbose=0)  # (n_test, 10)
    exact = accuracy(logits, data.test_labels)
    recipe.fact("accuracy: Keras, float32", exact)

    by_bits = round_by_hand(recipe, net, images, logits, data.test_labels)
    servable, seed, representative = Servable.from_net(net), recipe.flags.seed, [train_images[:CALIBRATION]]
    engines = [find_engine(name) for name in (installed[:1] if recipe.flags.quick else ENGINES)]
    plans = [
        Plan(engine=engine.name, precision=precision, threads=1)
        for engine in engines
        for precision in PRECISIONS
        if precision in engine.precisions
    ]
    batches = sorted({1, recipe.flags.batch})
    with TemporaryDirectory() as place:
        found = survey(
            servable,
            Origin("mnist_cnn", seed=seed),
            dict.fromkeys(batches, plans),
            {batch: [images[: 2 * batch]] for batch in batches},
            representative=representative,
            time_limit=recipe.flags.time_limit,
            cache=Path(place),
            on_step=lambda step: recipe.console.print(step, markup=False, style="dim"),
        )
        right = {}  # plan -> accuracy
        for row in found[0].ran:
            with build(servable, row.plan, representative=representative, cache=Path(place)) as runner:
                (answers,) = in_batches(runner, servable.signature, [images], 250)
            right[row.plan] = accuracy(answers, data.test_labels)
    if not right:
        reasons = "; ".join(row.reason for row in found[0].trials)
        raise TfperfError(f"expected an engine that runs the net. Received: {reasons}")
    for row in (row for one in found for row in one.trials if row.agreement is not None):
        recipe.add(row.agreement)
    for one in found:
        if one.comparison is not None:
            recipe.add(one.comparison)
    check_promise(recipe, found, right, exact)
    words = ", ".join(f"{share:.1%} with {bits}" for bits, share in by_bits.items())
    recipe.finds(f"Weights rounded by hand to fewer than 32 bits ({exact:.1%} right): {words}.")
    for row in (row for one in found for row in one.trials if row.agreement is None):
        recipe.finds(f"{row.plan}, batch {row.batch}: {row.reason}")
    recipe.plot(lambda figure: survey_plots(figure, found, "mnist_cnn"))
    recipe.plot(lambda figure: draw(figure, by_bits, exact, right), suffix="_accuracy")


def accuracy(logits, labels) -> float:
    """The share of rows whose largest logit is the label."""
    return float(np.mean(logits.argmax(axis=1) == labels))


def round_by_hand(recipe: Recipe, net, images, logits, labels) -> dict[int, float]:
    """Round all matrices and filters to ever fewer bits, and compute in float32 with them; bits -> accuracy."""
    copy, weights, found = keras.models.clone_model(net), net.get_weights(), {}
    for bits in BITS:
        copy.set_weights([rounded(one, bits) if one.ndim > 1 else one for one in weights])
        answers = copy.predict(images, batch_size=1000, verbose=0)
        if bits == BITS[0]:
            recipe.agrees(f"weights in {bits} bits, by hand", answers, logits, TOLERANCES["int8"])
        found[bits] = accuracy(answers, labels)
        recipe.fact(f"accuracy: weights in {bits} bits, by hand", found[bits])
    return found


def check_promise(recipe: Recipe, found: list, right: dict, exact: float) -> None:
    """A quarter of the size and accuracy within a point, or an error; and what it does to latency."""
    fast = ", ".join(sorted(CPU_FEATURES & {*Environment.here().cpu_features}))
    whole = {row.plan.engine: row for row in found[0].ran if row.plan.precision == "float32"}
    for row in found[0].ran:
        name, share = f"{row.plan.engine}, {row.plan.precision}", right[row.plan]
        recipe.fact(f"accuracy: {name}", share)
        recipe.fact(f"bytes on disk: {name}", row.size)
        recipe.fact(f"proof: {name}", row.proof["precision"])
        if abs(share - exact) > MOST_LOST:
            raise TfperfError(f"{name}: {share:.2%} of the test images are right, with Keras in float32 {exact:.2%}")
        float32 = whole.get(row.plan.engine, row)
        if float32 is row:
            continue
        words = f"{format_bytes(row.size)} in place of {format_bytes(float32.size)}"
        if row.size > MOST_SIZE * float32.size:
            raise TfperfError(f"{name}: expected at most {MOST_SIZE:.0%} of the size in float32. Received: {words}")
        words += f", {share:.2%} of the test images right in place of {right[float32.plan]:.2%}"
        for one in found:
            names = [str(plan.model_copy(update={"batch": one.batch})) for plan in (float32.plan, row.plan)]
            if {*names} <= {other.name for other in one.ran}:
                ratio = one.comparison.ratio(*names)
                words += f"; batch {one.batch}: {ratio.verdict}, {ratio.estimate:.2f} times the speed"
        recipe.finds(f"{name}: {words}.")
    recipe.finds(
        "How fast int8 is depends on the kernels that an engine has for it. Of instructions that multiply int8 this "
        f"CPU has {fast or 'none'}."
    )


def draw(figure, by_bits: dict, exact: float, right: dict) -> None:
    """Draw accuracy against the bits of a weight, by hand and in the engines."""
    axes = figure.subplots()
    axes.axhspan(100 * (exact - MOST_LOST), 100 * exact, color="tab:green", alpha=0.15, label="within a point")
    axes.plot([32, *by_bits], [100 * share for share in (exact, *by_bits.values())], "o-", label="weights, by hand")
    bits = [32 if plan.precision == "float32" else 8 for plan in right]
    axes.plot(bits, [100 * share for share in right.values()], "kx", markersize=9, label="the engines")
    axes.set_xscale("log", base=2)
    axes.set_xticks([32, *by_bits], [32, *by_bits])
    axes.set_xlabel("bits a weight")
    axes.set_ylabel("% of the test images right")
    axes.set_title("How many bits are enough", loc="left")
    axes.legend(fontsize="small")


if __name__ == "__main__":
    Recipe(__file__, batch=64).run(main)
