"""When is half precision faster, and what saves the gradients?

Source: 004, 3.3.1 混合精度模式
Claim: mixed precision trains in float32, refines in half, then trains in full precision again, with weights in half; it
    is faster, saves memory and keeps gradients from vanishing. The source names no figure.
Holds not: where the processor has no arithmetic for the type; there half precision is slower.
Needs: TensorFlow; real images (tfperf data fashion_mnist); no GPU.
Time: about 60 s on 2 cores; with --quick about 20 s.
Shows: half_precision, wrong_end, right_end, scaled_step
Try: --model mlp: its layers are small, so bfloat16 gains less than on the convolutions, or loses.
"""

from functools import partial

import keras
import numpy as np
import tensorflow as tf

from tfperf import Recipe
from tfperf.cookbook import TOO_SLOW, speed_words


def half_precision(build, policy="mixed_bfloat16"):
    """Compute in half precision while weights stay float32: set the policy before the net is built."""
    keras.config.set_dtype_policy(policy)
    net = build()
    keras.config.set_dtype_policy("float32")
    return net


def wrong_end(classes):
    """End in a softmax of the policy's type: in float16 its gradient becomes infinite, and later zero."""
    return keras.layers.Dense(classes, activation="softmax")


def right_end(classes):
    """End in float32 logits, for a loss with from_logits=True."""
    return keras.layers.Dense(classes, dtype="float32")


def scaled_step(net, optimizer, loss_of, inputs, labels):
    """Scale the loss, so that small gradients survive float16: the optimizer divides by the scale, and then clips."""
    with tf.GradientTape() as tape:
        loss = optimizer.scale_loss(loss_of(labels, net(*inputs, training=True)))
    gradients = tape.gradient(loss, net.trainable_variables)
    optimizer.apply(gradients, net.trainable_variables)  # a LossScaleOptimizer skips updates with infinities


POLICIES = ("mixed_bfloat16", "mixed_float16", "float32")  # rising memory, so that each peak is a new one
TOLERANCES = {"mixed_bfloat16": 5e-2, "mixed_float16": 5e-3}  # largest error of an output, by the largest output
SCALE, RATE = 2.0**15, 0.01  # where Keras's loss scale begins; rate of the updates that are counted


def main(recipe: Recipe) -> None:
    """Train one net in three precisions, and count what half precision loses."""
    opened = recipe.open_model(batch=1)
    data = None if opened.is_yours else recipe.load_data(quick=(8192, 2000))
    inputs, labels, loss_of = opened.training_batch(data, recipe.flags.batch)
    nets = {policy: half_precision(partial(opened.copy, policy), policy) for policy in POLICIES}
    for policy, tolerance in TOLERANCES.items():
        recipe.agrees(policy, nets[policy](*inputs), nets["float32"](*inputs), tolerance)
    count_ends(recipe)
    recipe.plot(draw, count_losses(recipe, nets, loss_of, inputs, labels))
    steps = {policy: step_of(policy, net, loss_of) for policy, net in nets.items()}
    for few in (2, 3):  # after two batch sizes a step is traced for any
        for step in steps.values():
            step(keras.tree.map_structure(lambda x, few=few: x[:few], inputs), labels[:few])
    saved = recipe.peaks(steps, inputs, labels)["float32"] / 2**20
    recipe.finds(f"A training step of {len(labels)} examples takes {saved:.0f} MiB less in bfloat16 than in float32.")
    steps = dict(reversed(steps.items()))  # float32 first, the baseline
    comparison = recipe.compare(steps, inputs, labels, tolerance=None, what="one step in each precision")
    for policy in TOLERANCES:
        recipe.finds(speed_words(policy, comparison.ratio("float32", policy)))
    if data is not None:
        longest = TOO_SLOW * comparison["float32"].median
        train(recipe, {policy: nets[policy] for policy in nets if comparison[policy].median < longest}, data)
    recipe.corrects(
        "there are no phases: every step computes in half and keeps weights and loss in float32. float16 is what makes "
        "gradients vanish; they are divided by the loss scale, and clipped after that."
    )


def step_of(policy: str, net, loss_of):
    """Compile a training step; in float16 the optimizer scales the loss."""
    adam = keras.optimizers.Adam(1e-3, global_clipnorm=10.0)
    optimizer = keras.optimizers.LossScaleOptimizer(adam) if policy == "mixed_float16" else adam
    optimizer.build(net.trainable_variables)
    return tf.function(lambda inputs, labels: scaled_step(net, optimizer, loss_of, inputs, labels))


def count_losses(recipe: Recipe, nets: dict, loss_of, inputs, labels) -> np.ndarray:
    """Count the gradients that only a scaled loss saves, and the weights that would not move if they were half."""

    def gradients_of(policy, scale):
        with tf.GradientTape() as tape:
            loss = scale * loss_of(labels, nets[policy](*inputs))
        gradients = tape.gradient(loss, nets[policy].trainable_variables, unconnected_gradients="zero")
        return np.concatenate([np.ravel(tf.convert_to_tensor(one)) for one in gradients])

    exact = gradients_of("float32", 1.0)
    for policy in TOLERANCES:
        lost = float(np.mean(gradients_of(policy, 1.0) == 0) - np.mean(gradients_of(policy, SCALE) == 0))
        recipe.fact(f"share of gradients that only a scaled loss saves: {policy}", lost)
        recipe.finds(f"{policy}: {lost:.2%} of the weights' gradients are zero unless the loss is scaled.")
    weights = np.concatenate([np.ravel(one) for one in nets["float32"].trainable_variables])
    for kind in ("float32", "float16", "bfloat16"):
        kept = weights.astype(tf.as_dtype(kind).as_numpy_dtype)
        still = float(np.mean(((kept - RATE * exact).astype(kept.dtype) == kept)[exact != 0]))
        recipe.fact(f"share of weights that an update leaves as they are: kept in {kind}", still)
        recipe.finds(f"Weights kept in {kind}: SGD with rate {RATE} would leave {still:.0%} of them unmoved.")
    return np.abs(exact[exact != 0])


def count_ends(recipe: Recipe) -> None:
    """Put the right class ever further behind, and see where the gradient of each last layer fails."""
    for name, end, from_logits in (("softmax in float16", wrong_end, False), ("logits in float32", right_end, True)):
        layer, x = half_precision(partial(end, 2), "mixed_float16"), tf.Variable([[0.0, lag] for lag in range(20)])
        layer.build([None, 2])
        layer.set_weights([np.eye(2), np.zeros(2)])
        with tf.GradientTape() as tape:
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits, reduction="sum")(tf.zeros(20), layer(x))
        failed = [lag for lag, size in enumerate(np.abs(tape.gradient(loss, x)).max(1)) if not 0 < size < np.inf]
        recipe.fact(f"logits behind from which the gradient fails: {name}", failed[0] if failed else "never")
        where = f"infinite or zero when the right class is {failed[0]} logits behind" if failed else "right at any lag"
        recipe.finds(f"A net that ends in {name}: the gradient is {where}.")


def train(recipe: Recipe, nets: dict, data) -> None:
    """Train each net for one epoch, and count what it gets right."""
    images, tests = (part / np.float32(255) for part in (data.train_images, data.test_images))
    for policy, net in nets.items():  # compile scales the loss in float16
        net.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
        net.fit(images, data.train_labels, recipe.flags.batch, verbose=0)
        right = net.evaluate(tests, data.test_labels, 500, verbose=0)[1]
        recipe.fact(f"test accuracy: {policy}", float(right))
        recipe.finds(f"{policy}: {right:.1%} of the test images are right after one epoch.")


def draw(figure, sizes: np.ndarray) -> None:
    """Draw how large the gradients are beside what float16 holds."""
    axes = figure.subplots()
    for scale, label in ((1.0, "as they are"), (SCALE, "loss times 2**15")):
        axes.hist(np.log2(sizes * scale), range(-60, 20), alpha=0.6, label=label)
    axes.axvspan(-60, -24, color="tab:red", alpha=0.15, label="0 in float16")
    axes.set(xlabel="size, as a power of 2", ylabel="how many", title="Gradients of the weights")
    axes.legend()


if __name__ == "__main__":
    Recipe(__file__, batch=256, model="mnist_cnn").run(main)
