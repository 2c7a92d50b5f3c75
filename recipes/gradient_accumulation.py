"""A large batch in little memory?

Source: 004, 3.3.1.2 混合精度加速原理
Claim: set a number of steps over which gradients are accumulated, with equal batches (step 2); where memory is short,
    take a simpler model, a smaller batch or fewer samples (step 8). The source names no figure.
Expect: the gradient of one large batch and of 2 to 16 parts of it, equal; a peak of memory that falls with the size of
    the part; and what it costs in time.
Holds not: with batch normalization, whose statistics are those of a part; with dropout, which draws anew for each part.
Needs: TensorFlow; no GPU, no data.
Time: about 30 s on 2 cores; with --quick about 15 s.
Shows: accumulate, accumulate_in_keras, forget_to_divide
Try:
    - --batch 256: a quarter of the activations, so there is less memory to save.
    - --model resnet18 --batch 64: it has batch normalization, so the gradients of the parts differ from the batch's.
"""

import keras
import numpy as np
import tensorflow as tf

from tfperf import Recipe, TfperfError, Verdict
from tfperf.report import interval_plot


def accumulate(net, loss_of, parts):
    """Add up the gradients of the parts of a batch: activations are in memory for one part at a time."""
    sums = [tf.Variable(tf.zeros_like(weight.value), trainable=False) for weight in net.trainable_variables]

    @tf.function(reduce_retracing=False)
    def add_part(inputs, labels):
        with tf.GradientTape() as tape:
            loss = loss_of(labels, net(*inputs, training=True)) / parts  # the mean over all parts
        for total, gradient in zip(sums, tape.gradient(loss, net.trainable_variables), strict=True):
            total.assign_add(gradient)

    def gradients(inputs, labels):
        for total in sums:
            total.assign(tf.zeros_like(total))
        for rows in tf.split(tf.range(len(labels)), parts):  # one call for each: parts of one graph run side by side
            add_part(tf.nest.map_structure(lambda x, rows=rows: tf.gather(x, rows), inputs), tf.gather(labels, rows))
        return [tf.identity(total) for total in sums]

    return gradients


def accumulate_in_keras(optimizer, parts):
    """Let Keras update the weights once for so many batches, by the mean of their gradients."""
    return type(optimizer).from_config(optimizer.get_config() | {"gradient_accumulation_steps": parts})


def forget_to_divide(gradients, parts):
    """Make the usual mistake: without `/ parts` the sum is so many times the large batch's gradient."""
    return [parts * gradient for gradient in gradients]


PARTS = (16, 8, 4, 2, 1)  # rising memory, so that each peak is a new one
RATE = 0.1  # plain SGD, from whose step the gradient can be read
RANDOM = (keras.layers.BatchNormalization, keras.layers.Dropout)  # layers whose answer depends on the part


def main(recipe: Recipe) -> None:
    """Take one gradient of a large batch in 1 to 16 parts."""
    if recipe.flags.batch % PARTS[0]:
        raise TfperfError(f"expected --batch to be a multiple of {PARTS[0]}. Received: --batch {recipe.flags.batch}")
    opened = recipe.open_model(batch=1)
    net = opened.net
    inputs, labels, loss_of = opened.training_batch(None, recipe.flags.batch)
    ways = {words(parts): accumulate(net, loss_of, parts) for parts in PARTS}
    saved = recipe.peaks(ways, inputs, labels)[words(1)] / 2**20
    recipe.finds(
        f"In {PARTS[0]} parts the gradient of {opened.words} for {len(labels)} examples takes {saved:.0f} MiB less "
        "than at once: activations are kept for one part at a time."
    )
    if dependent := [layer for layer in net._flatten_layers() if isinstance(layer, RANDOM)]:
        whole, parts = flat(ways[words(1)](inputs, labels)), flat(ways[words(PARTS[0])](inputs, labels))
        share = float(np.abs(parts - whole).max() / np.abs(whole).max())
        recipe.fact("largest difference of a gradient, as a share of the largest gradient", share)
        recipe.finds(
            f"{opened.words} has {len(dependent)} layers of batch normalization or dropout, so {PARTS[0]} parts give "
            f"gradients that differ by {share:.0%} of the largest: each part has its own statistics."
        )
    else:
        recipe.agrees(
            f"{words(PARTS[0])}, float32", ways[words(PARTS[0])](inputs, labels), ways[words(1)](inputs, labels), 1e-3
        )
    check(recipe, simple_net() if opened.is_yours else net, loss_of)
    compared = {words(parts): ways[words(parts)] for parts in (1, 4, 16)}
    comparison = recipe.compare(compared, inputs, labels, tolerance=None, what="one gradient in so many parts")
    for parts in (4, 16):
        ratio = comparison.ratio(words(1), words(parts))
        why = {
            Verdict.FASTER: ": the parts fit the caches better",
            Verdict.SLOWER: ": smaller kernels, and the gradients are added once more for each part",
        }
        speed = f"{ratio.estimate:.2f} times the speed of the whole batch [{ratio.low:.2f}, {ratio.high:.2f}]"
        recipe.finds(f"{words(parts)}: {ratio.verdict}, {speed}{why.get(ratio.verdict, '')}.")
    recipe.corrects(
        "accumulating is a technique of its own, and no step of mixed precision. The number of samples does not matter "
        "to the device's memory; to save it, accumulate gradients or compute activations again."
    )
    recipe.plot(lambda figure: interval_plot(figure.subplots(), comparison, f"One gradient of {len(labels)} examples"))


def simple_net():
    """Build a net without batch normalization and dropout, whose gradients do not depend on the part."""
    return keras.Sequential([keras.Input([8]), keras.layers.Dense(16, "relu"), keras.layers.Dense(4)])


def check(recipe: Recipe, net, loss_of) -> None:
    """Compare the gradients of parts, ours and Keras's, with the whole batch's in float64, and count the mistake."""
    exact = keras.models.clone_model(
        net, clone_function=lambda layer: type(layer).from_config(layer.get_config() | {"dtype": "float64"})
    )
    exact.set_weights(net.get_weights())
    inputs, labels = (
        (tf.random.normal([16, *exact.input_shape[1:]], seed=recipe.flags.seed, dtype=tf.float64),),
        tf.zeros([16]),
    )
    whole = accumulate(exact, loss_of, 1)(inputs, labels)
    for parts in PARTS[:-1]:
        recipe.agrees(f"{words(parts)}, float64", accumulate(exact, loss_of, parts)(inputs, labels), whole, 1e-6)
    before = exact.get_weights()
    exact.compile(accumulate_in_keras(keras.optimizers.SGD(RATE), 4), loss_of)
    exact.fit(*inputs, labels, batch_size=4, shuffle=False, verbose=0)
    moved = [(old - new) / RATE for old, new in zip(before, exact.get_weights(), strict=True)]
    recipe.agrees("Keras's own, 4 parts, float64", moved, whole, 1e-6)
    wrong = flat(forget_to_divide(whole, 4)) / np.where(flat(whole) == 0, 1, flat(whole))
    recipe.fact("times the gradient when 4 parts are not divided", float(wrong.max()))
    recipe.finds(f"Without the division by the number of parts, 4 parts give {wrong.max():.0f} times the gradient.")


def words(parts: int) -> str:
    """Name a candidate."""
    return f"{parts} part{'s' * (parts > 1)}"


def flat(gradients) -> np.ndarray:
    """Put all numbers in a row."""
    return np.concatenate([np.ravel(gradient) for gradient in gradients])


if __name__ == "__main__":
    Recipe(__file__, batch=1024, model="mnist_cnn").run(main)
