"""When is half precision faster, and what saves the gradients?

Command: python recipes/mixed_precision.py, or tfperf run mixed_precision
Needs: TensorFlow; real images (tfperf data fashion_mnist); no GPU.
Time: about 60 s on 2 cores; with --quick about 30 s.
Source: mixed precision trains in float32 first and then refines in half; it saves memory and time, and keeps
    the accuracy. It names no figure.
Expect: what it truly is: layers compute in half, weights stay in float32, and in float16 the loss is scaled. Time
    and memory of a training step and the accuracy in float32, bfloat16 and float16; the gradients and updates
    that are lost without these safeguards, counted; and the reason where half is slower.
"""

import time

import keras
import numpy as np
import tensorflow as tf

from tfperf import Flag, Recipe, TfperfError, check_agreement, compare, get_net, load
from tfperf.cookbook.half_precision import TOO_SLOW, far_slower, why_slower
from tfperf.measure import Environment, Verdict
from tfperf.measure.memory import PeakMemory

UNSCALED = "mixed_float16, loss not scaled"
HALVES = ("mixed_bfloat16", "mixed_float16")
POLICIES = (*HALVES, "float32")  # rising memory, so that each peak is a new one
TOLERANCES = {"mixed_bfloat16": 2e-1, "mixed_float16": 5e-2, "float32": 1e-5}  # of gradients, by the largest
KERAS_SCALE = 2.0**15  # of the loss, with which Keras's LossScaleOptimizer begins
SCALES = (KERAS_SCALE, 2.0**20, 2.0**25, 2.0**30)  # of which the larger ones are too large for float16
SMALLEST, SMALLEST_NORMAL = 2.0**-24, 2.0**-14  # of float16: what is less is 0, or has fewer digits
RATE = 0.01  # of the SGD update that is counted
QUICK_IMAGES = (4096, 2000)  # train, test
QUICK_GRADIENTS = 32  # images of a batch whose gradients are counted


def main(recipe: Recipe) -> None:
    """Train one CNN in three precisions, and look for what half precision loses."""
    tf.get_logger().setLevel("ERROR")  # each net is traced for several sizes, which TensorFlow takes for retracing
    data = load("fashion_mnist").take(*QUICK_IMAGES) if recipe.flags.quick else load("fashion_mnist")
    recipe.uses(data.describe())
    batch = recipe.flags.batch
    if batch > len(data.train_images):
        raise TfperfError(f"expected --batch of at most {len(data.train_images)}. Received: --batch {batch}")
    images = tf.constant(data.train_images[:batch] / np.float32(255))  # (batch, height, width, channels)
    labels = tf.constant(data.train_labels[:batch])  # (batch,)
    memory, seconds = measure_memory(recipe, images, labels)
    slow = tuple(policy for policy in HALVES if seconds[policy] > TOO_SLOW * seconds["float32"])
    nets = {policy: build(recipe, policy) for policy in POLICIES}
    unscaled = {UNSCALED: build(recipe, "mixed_float16", auto_scale_loss=False)}
    learnt = train(recipe, {name: net for name, net in (nets | unscaled).items() if not name.startswith(slow)}, data)

    # Now all nets take the trained weights of one: what differs from here on is the precision alone.
    for net in nets.values():
        net.set_weights(nets["float32"].get_weights())
    gradients = {policy: gradients_of(net, batch) for policy, net in nets.items()}
    recipe.console.print("\nAre the gradients the same?")
    few = (images[:QUICK_GRADIENTS], labels[:QUICK_GRADIENTS]) if recipe.flags.quick else (images, labels)
    of_weights, of_activations = gradients["float32"](*few, 1.0)
    for policy, tolerance in TOLERANCES.items():
        scale = KERAS_SCALE if policy == "mixed_float16" else 1.0
        found = gradients[policy](*few, scale)[0] / scale
        recipe.add(check_agreement(policy, found, of_weights, tolerance))
    lost = (
        count_lost_gradients(recipe, gradients, *few, of_activations),
        count_lost_updates(recipe, flat(nets["float32"].trainable_variables), of_weights),
    )

    compared = [policy for policy in reversed(POLICIES) if policy not in slow]
    steps = {policy: lambda net=nets[policy]: net.train_on_batch(images, labels) for policy in compared}
    with recipe.progress("one training step of each, side by side") as show:
        comparison = compare(steps, time_limit=recipe.flags.time_limit, seed=recipe.flags.seed, on_progress=show)
    recipe.add(comparison)
    explain(recipe, comparison, [policy for policy in HALVES if policy in compared])
    for policy in slow:
        recipe.fact(f"seconds of a step, too many to train with: {policy}", seconds[policy])
        recipe.means(far_slower(policy, seconds[policy], seconds["float32"]))
    for sentence in (memory, learnt, *lost):
        recipe.means(sentence)
    recipe.plot(lambda figure: draw(figure, of_activations, comparison))


def build(recipe: Recipe, policy: str, **options) -> keras.Model:
    """The CNN under a policy, with equal first weights; in float16 Keras scales the loss unless it is told not to."""
    keras.config.set_dtype_policy(policy)
    net = get_net("mnist_cnn", seed=recipe.flags.seed)
    keras.config.set_dtype_policy("float32")
    net.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False, **options)
    computes, keeps = net.layers[0](tf.zeros([1, 28, 28, 1])).dtype.name, net.layers[0].kernel.dtype
    if computes != policy.removeprefix("mixed_") or keeps != "float32":
        raise TfperfError(f"'{policy}' did not take effect: it computes in {computes} and keeps weights in {keeps}")
    return net


def measure_memory(recipe: Recipe, images, labels) -> tuple[str, dict[str, float]]:
    """Measure the peak of memory in a training step; what it means, in words, and the seconds of each step."""
    nets = {policy: build(recipe, policy) for policy in POLICIES}
    for net in nets.values():
        for few in (2, 3):  # after two sizes of batches it is traced for any: tracing takes memory too
            net.train_on_batch(images[:few], labels[:few])
    before, peaks, seconds = PeakMemory(), {}, {}
    for policy, net in nets.items():
        start = time.perf_counter()
        net.train_on_batch(images, labels)
        seconds[policy] = time.perf_counter() - start
        peak = before.read()
        peaks[policy] = peak.resident if peak.device is None else peak.device
        recipe.fact(f"bytes of peak memory above {POLICIES[0]}: {policy}", peaks[policy] - peaks[POLICIES[0]])
    saved = (peaks["float32"] - peaks[POLICIES[0]]) / 2**20
    words = (
        f"A training step of {len(images)} images takes {saved:.0f} MiB less in bfloat16 than in float32: activations "
        "are half as large, weights are not."
    )
    return words, seconds


def train(recipe: Recipe, nets: dict, data) -> str:
    """Train every net on the same batches in the same order, and count what it gets right; the counts, in words."""
    batch, epochs = recipe.flags.batch, 1 if recipe.flags.quick else recipe.flags.epochs
    images, tests = (part / np.float32(255) for part in (data.train_images, data.test_images))
    generator, found = np.random.default_rng(recipe.flags.seed), {}
    rows = np.concatenate([generator.permutation(len(images)) for _ in range(epochs)])
    for name, net in nets.items():
        for some in np.split(rows[: len(rows) // batch * batch], len(rows) // batch):
            net.train_on_batch(images[some], data.train_labels[some])
        logits = np.concatenate([net.predict_on_batch(part) for part in np.array_split(tests, 10)])
        found[name] = float(np.mean(logits.argmax(axis=1) == data.test_labels))
        recipe.fact(f"test accuracy: {name}", found[name])
    words = "; ".join(f"{name} {right:.2%}" for name, right in found.items())
    words = f"Right on the test images (epochs: {epochs}): {words}."
    if UNSCALED not in found:
        return f"{words} In float16, where a step takes so long, it was not trained."
    suffers = "suffers" if found[UNSCALED] < found["mixed_float16"] - 0.01 else "does not suffer"
    return f"{words} A net as small as this {suffers} where the loss is not scaled."


def gradients_of(net: keras.Model, batch: int):
    """A function from images, labels and the scale of the loss to the gradients of weights and of activations.

    The loss is the mean over a batch, of which the images may be a part.
    """
    variables = [weight.value for weight in net.trainable_variables]
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")

    @tf.function
    def gradients(x, labels, scale):
        activations = []
        with tf.GradientTape() as tape:
            for layer in net.layers:
                x = layer(x, training=True)
                activations += [x] if layer.weights else []
            loss = loss_of(labels, x) / batch * scale
        return tape.gradient(loss, [variables, activations])

    return lambda images, labels, scale: [flat(some) for some in gradients(images, labels, tf.constant(scale))]


def count_lost_gradients(recipe: Recipe, gradients: dict, images, labels, exact: np.ndarray) -> str:
    """How many gradients of activations are 0 in half, but not with a scaled loss, and which scale is too large."""
    lost = {}
    for policy in HALVES:
        bare, scaled = (gradients[policy](images, labels, scale)[1] for scale in (1.0, KERAS_SCALE))
        lost[policy] = float(np.mean(bare[scaled != 0] == 0))
        recipe.fact(f"share of activations' gradients that only a scaled loss saves: {policy}", lost[policy])
    if lost["mixed_bfloat16"] > lost["mixed_float16"]:
        raise TfperfError(f"expected float16, not bfloat16, to lose gradients. Received: {lost}")
    short = float(np.mean(np.abs(exact[exact != 0]) < SMALLEST_NORMAL))
    recipe.fact("share of activations' gradients with fewer digits in float16", short)
    infinite = (one for one in SCALES if not np.isfinite(gradients["mixed_float16"](images, labels, one)[0]).all())
    too_large = next(infinite, None)
    broken = "none that was tried" if too_large is None else f"2**{np.log2(too_large):.0f}"
    recipe.fact("first scale of the loss that makes infinities", broken)
    return (
        f"Of {np.count_nonzero(exact):,} gradients of activations float16 holds {short:.0%} with fewer digits, and "
        f"makes {lost['mixed_float16']:.2%} zero, which the loss times 2**15 saves; bfloat16, with the exponents of "
        f"float32, {lost['mixed_bfloat16']:.2%}. Too large a scale makes infinities (here {broken}): so Keras leaves "
        "out a step with such gradients, and halves the scale."
    )


def count_lost_updates(recipe: Recipe, weights: np.ndarray, gradients: np.ndarray) -> str:
    """How many weights an update would leave as they are, if they were kept in half too."""
    words = []
    for kind in (tf.float16, tf.bfloat16, tf.float32):
        kept = weights.astype(kind.as_numpy_dtype)
        updated = (kept.astype(np.float32) - RATE * gradients).astype(kind.as_numpy_dtype)
        share = float(np.mean(updated[gradients != 0] == kept[gradients != 0]))
        recipe.fact(f"share of weights that an update leaves as they are: kept in {kind.name}", share)
        words.append(f"{share:.0%} kept in {kind.name}")
    return f"Why weights stay in float32: SGD with rate {RATE} would leave unmoved {', '.join(words)}."


def explain(recipe: Recipe, comparison, halves: list[str]) -> None:
    """Say when half is faster, and why not where it is not."""
    environment = Environment.here()
    for policy in halves:
        ratio, number_format = comparison.ratio("float32", policy), policy.removeprefix("mixed_")
        has, reason = environment.instructions_for(number_format), ""
        if ratio.verdict is Verdict.SLOWER:
            reason = f", because {why_slower(number_format, far=False)}"
        elif ratio.verdict is Verdict.FASTER and has and not environment.accelerators:
            reason = f": this CPU has {', '.join(has)}"
        recipe.means(
            f"{policy}: {ratio.verdict} here, a step at {ratio.estimate:.2f} times the speed of float32 "
            f"[{ratio.low:.2f}, {ratio.high:.2f}]{reason}."
        )


def flat(tensors) -> np.ndarray:
    """All numbers in a row, in float32."""
    return np.concatenate([np.ravel(np.asarray(tensor, np.float32)) for tensor in tensors])


def draw(figure, gradients: np.ndarray, comparison) -> None:
    """Draw how large the gradients are beside what float16 can hold, and the time of a step."""
    left, right = figure.subplots(1, 2)
    sizes, edges = np.log2(np.abs(gradients[gradients != 0])), np.arange(-60, 20)
    left.hist(sizes, edges, alpha=0.6, label="as they are")
    left.hist(sizes + np.log2(KERAS_SCALE), edges, alpha=0.6, label="loss times 2**15")
    smallest, normal = np.log2([SMALLEST, SMALLEST_NORMAL])
    left.axvspan(edges[0], smallest, color="tab:red", alpha=0.15, label="0 in float16")
    left.axvspan(smallest, normal, color="tab:orange", alpha=0.15, label="fewer digits in float16")
    left.set_xlabel("size, as a power of 2")
    left.set_ylabel("how many")
    left.set_title("Gradients of the activations", loc="left")
    left.legend(fontsize="small")
    names = [m.name.removeprefix("mixed_") for m in comparison.measurements]
    right.bar(names, [m.median * 1e3 for m in comparison.measurements])
    right.set_ylabel("ms")
    right.set_title("One training step", loc="left")


if __name__ == "__main__":
    Recipe(__file__, batch=256, epochs=Flag(1, "epochs to train")).run(main)
