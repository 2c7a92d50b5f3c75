"""How does data parallelism work, concisely?

Source: 002, 6.2.3.2 代码实践, 简洁实现; 001, 12.6. 多 GPU 的简洁实现
Claim: `nn.DataParallel(net, device_ids=devices)` trains ResNet-18 on 2 GPUs: 3x3 first layer, no max pooling, SGD,
    batch 256, rate 0.1, 10 epochs. Neither source shows an accuracy or a time.
Expect: no strategy, and MirroredStrategy on one device and on two: equal weights, and the time of a step.
Holds not: with batch normalization, whose mean and variance are those of a replica's part, unless it is synchronized;
    and devices that are parts of one CPU share its cores, and gain nothing.
Needs: TensorFlow; real images (tfperf data fashion_mnist); GPUs where there are any, else logical CPU devices.
Time: 4 to 13 minutes on 2 cores, on a share of an epoch; with --quick about 30 s.
Shows: mirror, synchronize, forget_the_scope
Try: --batch 4 --images 256: as many gradients are exchanged for few images, so mirroring costs a larger share.
"""

from functools import partial

import keras
import numpy as np
import tensorflow as tf

from tfperf import Flag, Recipe, TfperfError, check_agreement, get_net
from tfperf.data import training_batches
from tfperf.parallel import find_devices
from tfperf.report import interval_plot


def mirror(build, strategy, rate):
    """Make net and optimizer in the strategy's scope: each device gets a copy, and `fit` shares each batch out."""
    with strategy.scope():
        net = build()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        net.compile(keras.optimizers.SGD(rate), loss, metrics=["accuracy"], jit_compile=False)  # XLA fails under it
    return net


def synchronize(net):
    """Let batch normalization take mean and variance over all replicas: then they train as one device does."""

    def copy(layer):
        changes = {"synchronized": True} if isinstance(layer, keras.layers.BatchNormalization) else {}
        return type(layer).from_config(layer.get_config() | changes)

    return keras.models.clone_model(net, clone_function=copy)


def forget_the_scope(build, strategy, rate):
    """Build the net outside the strategy's scope, as the source leaves its own where it is: Keras refuses to train."""
    net = build()
    return mirror(lambda: net, strategy, rate)


RATE, SMALL, EXACT_STEPS = 0.1, 12, 2  # the source's rate; pixels a side and steps where weights are compared
EPOCH = 60_000  # images of Fashion-MNIST


def main(recipe: Recipe) -> None:
    """Train ResNet-18 without a strategy, mirrored on one device and on several."""
    devices, quick = find_devices(recipe.flags.devices), recipe.flags.quick
    batch = recipe.flags.batch // 16 if quick else recipe.flags.batch
    if batch % len(devices) or not batch:
        raise TfperfError(f"expected batches that {len(devices)} devices share equally. Received: batches of {batch}")
    images, tests = (max(4 * batch, 32 * EXACT_STEPS), 100) if quick else (max(recipe.flags.images, batch), 1000)
    data = recipe.load_data(quick=(EPOCH, tests)).take(min(images, EPOCH), tests)
    recipe.uses(data)
    recipe.console.print(f"{len(data.train_images):,} images are a share of an epoch, too small to train the net.")
    alone, both = tf.distribute.get_strategy(), tf.distribute.MirroredStrategy(devices)  # one for all nets of a process
    compare_weights(recipe, alone, both, data)
    several = f"mirrored on {len(devices)}"
    strategies = {"no strategy": alone, "mirrored on 1": tf.distribute.MirroredStrategy(devices[:1]), several: both}
    nets = {name: train(recipe, data, batch, strategy) for name, strategy in strategies.items()}
    steps = {name: partial(net.train_function, feed(net, data, batch)) for name, net in nets.items()}
    comparison = recipe.compare(steps, tolerance=None, what="one training step")
    tests, rows = (data.test_images / np.float32(255), data.test_labels), []
    for name, net in nets.items():
        accuracy, speed = net.evaluate(*tests, batch_size=256, verbose=0)[1], batch / comparison[name].median
        rows.append((name, f"{accuracy:.1%}", f"{speed:,.0f}", f"{EPOCH / speed:,.0f}"))
        recipe.fact(f"test accuracy: {name}", accuracy)
        recipe.fact(f"seconds per epoch, extrapolated: {name}", EPOCH / speed)
    recipe.table(("trained", "accuracy", "images/s", "s/epoch, extrapolated"), rows)
    for name in list(nets)[1:]:
        ratio = comparison.ratio("no strategy", name)
        recipe.finds(f"{name}: {ratio.estimate:.2f} times the speed without: {ratio.verdict}.")
    recipe.finds("One device has nothing to share, and logical CPU devices share cores: neither has anything to gain.")
    correct(recipe, both)
    recipe.plot(lambda figure: interval_plot(figure.subplots(), comparison, f"One training step, batch {batch}"))


def train(recipe: Recipe, data, batch: int, strategy: tf.distribute.Strategy) -> keras.Model:
    """Train from equal first weights on equal batches."""
    keras.utils.set_random_seed(recipe.flags.seed)
    net = mirror(partial(get_net, "resnet18"), strategy, RATE)
    net.fit(training_batches(data, batch, seed=recipe.flags.seed, reshuffle=False), verbose=0, shuffle=False)
    return net


def feed(net: keras.Model, data, batch: int):
    """Give batches for ever, as `fit` would give them to this net."""
    return iter(net.distribute_strategy.experimental_distribute_dataset(training_batches(data, batch).repeat()))


def compare_weights(recipe: Recipe, alone, both, data) -> None:
    """Compare weights of one device and of several: the first block of ResNet-18 after a few steps on small images."""
    few, part = 32 * EXACT_STEPS, slice(8, 8 + SMALL)
    small = data.train_images[:few, part, part] / 255, data.train_labels[:few]

    def build(change):
        net = get_net("resnet18", input_shape=small[0].shape[1:])
        features = keras.layers.Flatten()(net.get_layer("stage1_block1_relu2").output)
        return change(keras.Model(net.input, keras.layers.Dense(10)(features)))

    def weights(strategy, dtype="float64", change=synchronize):
        keras.config.set_floatx(dtype)
        keras.config.set_dtype_policy(dtype)
        keras.utils.set_random_seed(recipe.flags.seed)
        net = mirror(partial(build, change), strategy, 0.01)
        net.fit(*small, batch_size=32, verbose=0, shuffle=False)
        return np.concatenate([weight.numpy().ravel() for weight in net.trainable_weights])

    several, expected = f"{both.num_replicas_in_sync} devices", weights(alone)
    exact = recipe.agrees(f"{several}, synchronized, float64, {EXACT_STEPS} steps", weights(both), expected, 1e-9)
    own = check_agreement("own", weights(both, change=lambda net: net), expected).relative_error
    single = check_agreement("float32", weights(both, "float32"), weights(alone, "float32")).relative_error
    recipe.fact("relative difference of the weights with statistics of each replica", own)
    recipe.finds(
        f"With synchronized batch normalization {several} give the weights of one, to {exact.relative_error:.0e}; in "
        f"float32 to {single:.0e}, and less well where rounding flips a ReLU. Without, each replica "
        f"takes its own part's mean and variance, and the weights differ by {own:.0e}."
    )


def correct(recipe: Recipe, strategy: tf.distribute.Strategy) -> None:
    """Make the source's mistake, and say what becomes of it."""
    images, labels = np.zeros((8, 28, 28, 1), np.float32), np.zeros(8, int)
    try:
        forget_the_scope(partial(get_net, "lenet"), strategy, RATE).fit(images, labels, verbose=0)
        told = "Keras trains all the same"
    except Exception as error:
        told = f"Keras raises {type(error).__name__}"
    recipe.fact("a net built outside the scope", told)
    recipe.corrects(
        "the listing never moves its net to GPU 0: with two GPUs PyTorch raises RuntimeError, without one a CPU trains "
        f"it whole, and `[cpu, cpu]` is printed. Where a net is built outside the scope, {told}."
    )
    recipe.corrects("nn.DataParallel is not recommended any more: DistributedDataParallel has a process for each GPU.")


if __name__ == "__main__":
    devices, images = Flag(2, "devices that share a batch"), Flag(3840, "images to train on; an epoch has 60,000")
    Recipe(__file__, batch=256, devices=devices, images=images).run(main)
