"""A large batch in little memory?

Command: python recipes/gradient_accumulation.py, or tfperf run gradient_accumulation
Needs: TensorFlow; no GPU, no data.
Time: about 30 s on 2 cores; with --quick about 15 s.
Source: choose a number of steps over which gradients are accumulated, so that each update sees as much data as
    a larger batch; the accumulated gradients are normalized. It names no figure.
Expect: one update from a large batch, and from 2 to 16 smaller ones after another: the same gradients, a peak
    of memory that falls with the size of the part, and what it costs in time. Then where it does not hold:
    batch normalization, whose statistics are those of the part.
"""

import keras
import numpy as np
import tensorflow as tf

from tfperf import Recipe, TfperfError, check_agreement, compare, get_net
from tfperf.measure import Verdict
from tfperf.measure.memory import PeakMemory

PARTS = (16, 8, 4, 2, 1)  # of the batch, one after another; rising memory, so that each peak is a new one
TOLERANCE = 1e-6  # relative to the largest gradient, in float64
ROUNDING = 1e-4  # the same in float32, where sums of a million numbers depend on their order
RATE = 0.1  # of plain SGD


def main(recipe: Recipe) -> None:
    """Take one gradient of a large batch in 1 to 16 parts."""
    batch = recipe.flags.batch
    if batch % PARTS[0]:
        raise TfperfError(f"expected --batch to be a multiple of {PARTS[0]}. Received: --batch {batch}")
    tf.get_logger().setLevel("ERROR")  # each number of parts is traced once, which TensorFlow takes for retracing
    tf.keras.utils.set_random_seed(recipe.flags.seed)
    images = tf.random.normal([batch, 28, 28, 1])  # (batch, height, width, channels)
    labels = tf.random.uniform([batch], maxval=10, dtype=tf.int32)  # (batch,)
    net = get_net("mnist_cnn", seed=recipe.flags.seed)
    gradients = {parts: accumulation(net, parts) for parts in PARTS}

    # The smallest parts come first: what the process keeps of one peak, the next and larger one hides.
    before, peaks = PeakMemory(), {}
    for parts, step in gradients.items():
        step(images, labels)
        peaks[parts] = before.read().resident
        more = peaks[parts] - peaks[PARTS[0]]
        recipe.fact(f"bytes of peak memory above {words(PARTS[0])}: {words(parts)}", more)

    recipe.console.print("\nAre the gradients the same?")
    exact, exact_images = in_float64(net), tf.cast(images, tf.float64)
    reference = flat(accumulation(exact, 1)(exact_images, labels))
    for parts in PARTS[:-1]:
        found = flat(accumulation(exact, parts)(exact_images, labels))
        recipe.add(check_agreement(f"{words(parts)}, float64", found, reference, TOLERANCE))
    update = keras_update(exact, exact_images, labels, 4)
    recipe.add(check_agreement("Keras's own, 4 parts, float64", update, reference, TOLERANCE))
    errors = {}  # parts -> share of the largest gradient
    for parts in PARTS:
        agreement = check_agreement(
            f"{words(parts)}, float32", flat(gradients[parts](images, labels)), reference, ROUNDING
        )
        recipe.add(agreement)
        errors[parts] = agreement.relative_error

    steps = {words(parts): lambda step=step: step(images, labels) for parts, step in reversed(gradients.items())}
    with recipe.progress("one gradient of the large batch, in so many parts") as show:
        comparison = compare(steps, time_limit=recipe.flags.time_limit, seed=recipe.flags.seed, on_progress=show)
    recipe.add(comparison)

    saved = (peaks[1] - peaks[PARTS[0]]) / 2**20
    recipe.means(
        f"In {PARTS[0]} parts of {batch // PARTS[0]} images the gradient is that of all {batch} at once, and needs "
        f"{saved:.0f} MiB less: activations are kept for one part at a time."
    )
    recipe.means(
        f"In float32 {words(PARTS[0])} come within {errors[PARTS[0]]:.0e} of the exact gradient, and the whole batch "
        f"within {errors[1]:.0e}: rounding grows with the length of a sum, and parts make shorter ones."
    )
    for parts in (PARTS[-2], PARTS[0]):
        ratio = comparison.ratio(words(1), words(parts))
        cost = f"{ratio.estimate:.2f} times the speed of the whole batch [{ratio.low:.2f}, {ratio.high:.2f}]"
        why = {
            Verdict.FASTER: ": the parts fit the caches better",
            Verdict.SLOWER: ": smaller kernels, and the weights' gradients are added once more for each part",
        }
        recipe.means(f"{words(parts)}: {ratio.verdict}, {cost}{why.get(ratio.verdict, '')}.")
    show_batch_norm(recipe)
    recipe.plot(lambda figure: draw(figure, comparison, peaks))


def accumulation(net: keras.Model, parts: int):
    """A function from images and labels to the gradients of their mean loss, one tensor for each weight."""
    variables = [weight.value for weight in net.trainable_variables]
    sums = [tf.Variable(tf.zeros_like(variable), trainable=False) for variable in variables]
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function(reduce_retracing=False)
    def add_part(images, labels):  # (batch / parts, height, width, channels), (batch / parts,)
        with tf.GradientTape() as tape:
            loss = loss_of(labels, net(images, training=True)) / parts  # the mean over all parts
        for total, gradient in zip(sums, tape.gradient(loss, variables), strict=True):
            total.assign_add(gradient)

    def gradients(images, labels):
        for total in sums:
            total.assign(tf.zeros_like(total))
        # One call for each part, not one graph of all: independent parts of a graph run side by side,
        # and then the activations of all parts are in memory at once.
        for some_images, some_labels in zip(tf.split(images, parts), tf.split(labels, parts), strict=True):
            add_part(some_images, some_labels)
        return [tf.identity(total) for total in sums]

    return gradients


def in_float64(net: keras.Model) -> keras.Model:
    """The same net with the same weights, computing in float64."""

    def widened(layer):
        return type(layer).from_config(layer.get_config() | {"dtype": "float64"})

    copy = keras.models.clone_model(net, clone_function=widened)
    copy.set_weights(net.get_weights())
    return copy


def keras_update(net: keras.Model, images, labels, parts: int) -> np.ndarray:
    """The gradients by which Keras's own accumulation has changed the weights of a copy of the net."""
    copy = in_float64(net)
    optimizer = keras.optimizers.SGD(RATE, gradient_accumulation_steps=parts)
    copy.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    copy.fit(images, labels, batch_size=len(labels) // parts, shuffle=False, verbose=0)
    pairs = zip(net.get_weights(), copy.get_weights(), strict=True)
    return flat([(before - after) / RATE for before, after in pairs])


def show_batch_norm(recipe: Recipe) -> None:
    """The gradients of a net with batch normalization, in one part and in four."""
    images = tf.random.normal([16, 28, 28, 1])  # (batch, height, width, channels)
    labels = tf.random.uniform([16], maxval=10, dtype=tf.int32)
    net = get_net("resnet18", seed=recipe.flags.seed)
    whole, four = (flat(accumulation(net, parts)(images, labels)) for parts in (1, 4))
    difference = float(np.abs(four - whole).max() / np.abs(whole).max())
    recipe.fact("largest difference with batch normalization, as a share of the largest gradient", difference)
    recipe.means(
        f"With batch normalization it does not hold: four parts of resnet18's batch give gradients that differ by "
        f"{difference:.0%} of the largest, as each part is normalized by its own mean and variance."
    )


def words(parts: int) -> str:
    """How a candidate is called."""
    return f"{parts} part{'s' * (parts > 1)}"


def flat(gradients) -> np.ndarray:
    """All numbers in a row."""
    return np.concatenate([np.ravel(gradient) for gradient in gradients])


def draw(figure, comparison, peaks: dict) -> None:
    """Draw the memory and the time of each number of parts."""
    from tfperf.report.plots import interval_plot

    left, right = figure.subplots(1, 2, width_ratios=[2, 3])
    names = [words(parts) for parts in peaks]
    least = min(peaks.values())
    left.barh(names, [(peak - least) / 2**20 for peak in peaks.values()], color="tab:blue")
    left.set_xlabel(f"MiB of peak memory above {words(PARTS[0])}")
    left.set_title("Memory", loc="left")
    interval_plot(right, comparison, "One gradient of the whole batch")


if __name__ == "__main__":
    Recipe(__file__, batch=1024).run(main)
