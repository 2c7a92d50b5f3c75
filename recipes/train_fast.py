"""Which changes make a training step of ResNet-18 faster on this CPU, and by how much each?

Source: 004, 3.3 深度学习加速方案
Claim: there are two ways to accelerate deep learning, mixed precision and GPUs. The source names no figure.
Holds not: on GPUs, whose kernels are others; for small nets, where the last two changes gain most.
Needs: TensorFlow; real images (tfperf data fashion_mnist); no GPU.
Time: 3 to 10 minutes on 2 cores; with --quick about 30 s.
Shows: in_bfloat16, exchange, FusedNorm, SwappedConv, kernel_gradient
Try: --batch 2: the update of 11 million weights takes as long as before, so Adam in one operation gains more of a step.
"""

import keras
import tensorflow as tf

from tfperf import Recipe, Verdict, get_net
from tfperf.cookbook import why_slower
from tfperf.measure import Environment
from tfperf.training import fast_optimizer, fuse


def in_bfloat16(build):
    """Compute in bfloat16, with weights in float32; give the last layer dtype="float32", as the loss wants."""
    keras.config.set_dtype_policy("mixed_bfloat16")
    net = build()
    keras.config.set_dtype_policy("float32")
    return net


def exchange(net, kinds):
    """Build a net anew with faster layers in place of Keras's: {keras.layers.Conv2D: SwappedConv}."""
    new = keras.models.clone_model(net, None, lambda old: kinds.get(type(old), type(old)).from_config(old.get_config()))
    new.set_weights(net.get_weights())
    return new


class FusedNorm(keras.layers.BatchNormalization):
    """Train by one operation in the type of the inputs, where Keras casts to float32 and takes many."""

    def call(self, inputs, training=None, mask=None):
        """Normalize images, (batch, height, width, channels)."""
        if mask is not None or not training:
            return super().call(inputs, training=training, mask=mask)
        form = {"scale": self.gamma.value, "offset": self.beta.value, "epsilon": self.epsilon}
        fused = tf.raw_ops.FusedBatchNormV3(x=inputs, mean=[], variance=[], **form)
        count = tf.cast(tf.size(inputs) // inputs.shape[-1], tf.float32)
        variance = fused.batch_variance * (count - 1) / count  # the operation divides by count - 1, Keras by count
        for moving, new in ((self.moving_mean, fused.batch_mean), (self.moving_variance, variance)):
            moving.assign(moving * self.momentum + new * (1 - self.momentum))
        return fused.y


class SwappedConv(keras.layers.Conv2D):
    """Convolve as Keras does, and leave the gradient of the kernel to `kernel_gradient`."""

    def convolution_op(self, inputs, kernel):
        """Convolve, as Keras calls it."""
        padding = self.padding.upper()

        @tf.custom_gradient
        def convolve(inputs, kernel):
            def backward(upstream):
                back = tf.nn.conv2d_transpose(upstream, kernel, tf.shape(inputs), self.strides, padding)  # the inputs'
                return back, kernel_gradient(inputs, upstream, self.kernel_size, self.strides)

            return tf.nn.conv2d(inputs, kernel, self.strides, padding), backward

        return convolve(inputs, tf.convert_to_tensor(kernel))


def kernel_gradient(inputs, upstream, kernel, strides):
    """Convolve inputs by upstream gradients, channels as the batch: faster on CPUs without matrix units."""
    sizes = zip(inputs.shape[1:3], upstream.shape[1:3], kernel, strides, strict=True)
    pads = [max(0, (made - 1) * stride + width - size) for size, made, width, stride in sizes]
    pads = [(0, 0), *((pad // 2, pad - pad // 2) for pad in pads), (0, 0)]
    few = [[0, tf.maximum(16 - tf.shape(inputs)[0], 0)], *[[0, 0]] * 3]  # with fewer, oneDNN's AMX may be wrong
    images, filters = tf.transpose(tf.pad(inputs, few), [3, 1, 2, 0]), tf.transpose(tf.pad(upstream, few), [1, 2, 0, 3])
    gradient = tf.nn.conv2d(images, filters, 1, pads, dilations=strides)
    return tf.transpose(gradient[:, : kernel[0], : kernel[1]], [1, 2, 0, 3])  # (height, width, channels, filters)


FIRST, HALF, LOOP = "Keras in float32", "mixed_bfloat16", "two steps a call"
PLAIN = {FusedNorm: keras.layers.BatchNormalization, SwappedConv: keras.layers.Conv2D}
CHANGES = {  # (what builds the net, the net so far, its optimizer, the batch size) -> (net, optimizer)
    HALF: lambda build, _, adam, __: (in_bfloat16(build), adam),
    "batch norm in one": lambda _, net, adam, __: (exchange(net, {keras.layers.BatchNormalization: FusedNorm}), adam),
    "kernel gradients forward": lambda _, net, adam, __: (exchange(net, {keras.layers.Conv2D: SwappedConv}), adam),
    "layers by fuse": lambda _, net, adam, batch: (fuse(exchange(net, PLAIN), batch_size=batch).model, adam),
    "Adam in one operation": lambda _, net, adam, __: (exchange(net, {}), lambda: fast_optimizer(adam())),
    LOOP: lambda _, net, adam, __: (exchange(net, {}), adam),
}


def main(recipe: Recipe) -> None:
    """Make one change after the other beside what was kept so far, for 8 rounds or more; keep it if it is faster."""
    build, machine = lambda: build_net(recipe.flags.seed, recipe.flags.quick), Environment.here()
    batch = max(1, recipe.flags.batch // 8) if recipe.flags.quick else recipe.flags.batch
    data = recipe.load_data().take(batch, 1)
    examples = tf.data.Dataset.from_tensors(((data.train_images / 255).astype("float32"), data.train_labels))
    feed, net, adam = iter(examples.repeat()), build(), keras.optimizers.Adam
    start, step = net.get_weights(), step_of(net, adam, feed)
    expected, first = step(2), recipe.measure(FIRST, step).median
    seconds, speeds, saved, limit = first, {FIRST: batch / first}, {}, max(recipe.flags.time_limit, 20 * first)
    for name, change in CHANGES.items():
        if name == HALF and not (machine.accelerators or machine.instructions_for("bfloat16")):
            recipe.finds(f"{name} is left out: {why_slower('bfloat16', far=False)}.")
            continue
        calls, changed = 1 + (name == LOOP), change(build, net, adam, batch)
        changed[0].set_weights(start)
        new_step = step_of(*changed, feed, calls)
        recipe.agrees(f"{name}: mean loss of two steps", new_step(2 // calls), expected, 2e-2)
        ways = {"so far": lambda step=step, calls=calls: step(calls), name: new_step}
        ratio = recipe.compare(ways, tolerance=None, what=f"with {name}", time_limit=calls * limit).ratio(*ways)
        speeds[name], kept = batch * ratio.estimate / seconds, ratio.verdict is Verdict.FASTER
        recipe.finds(f"{name}: {ratio.verdict}, {ratio.estimate:.2f} times as fast; {'kept' if kept else 'left out'}.")
        if kept:
            saved[name], seconds = seconds * (1 - 1 / ratio.estimate), seconds / ratio.estimate
            step, (net, adam) = new_step, changed
    for name, gain in saved.items():
        recipe.fact(f"share of the gain: {name}", gain / sum(saved.values()))
        recipe.finds(f"{name} saves {gain * 1e3:.1f} ms of a step, {gain / sum(saved.values()):.0%} of the gain.")
    recipe.finds(f"In all: {batch / seconds:.1f} images/s, {first / seconds:.2f} times as fast as Keras as it comes.")
    recipe.corrects(f"these are not the only ways; {len(saved.keys() - {HALF})} of {len(CHANGES) - 1} others pay here.")
    recipe.plot(draw, speeds, saved)


def build_net(seed: int, quick: bool) -> keras.Model:
    """Build ResNet-18, or for a quick run its first block."""
    net = get_net("resnet18", seed=seed)
    features = keras.layers.GlobalAveragePooling2D()(net.get_layer("stage1_block1_relu2").output)
    return keras.Model(net.input, keras.layers.Dense(10, dtype="float32")(features)) if quick else net


def step_of(net: keras.Model, adam, feed, calls: int = 1):
    """Compile a net and give what `fit` calls between its callbacks: it takes `calls` steps, gives the mean loss."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    net.compile(adam(), loss, steps_per_execution=calls, jit_compile=False)
    net.make_train_function()
    return lambda times=1: [net.train_function(feed)["loss"] for _ in range(times)][-1]


def draw(figure, speeds: dict, saved: dict) -> None:
    """Draw the images a second with each change on top of those that were kept."""
    axes = figure.subplots()
    colours = ["tab:blue" if name in {FIRST, *saved} else "lightgrey" for name in speeds]
    axes.bar_label(axes.barh(list(speeds), list(speeds.values()), color=colours), fmt="%.1f", padding=3)
    axes.set(xlabel="images/s", xmargin=0.1, ylim=(len(speeds) - 0.5, -0.5), title="One on the other; grey: not kept")


if __name__ == "__main__":
    Recipe(__file__, batch=64).run(main)
