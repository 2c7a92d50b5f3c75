"""What do mixed precision and MirroredStrategy buy, alone and together?

Source: 004, 3.4 混合精度训练+GPU加速方案结合实践案例分享
Claim: mixed precision and MirroredStrategy together make training faster: a small CNN on MNIST, 10 epochs, Adam, one
    V100. The source shows no time, and no run without them.
Holds not: on one device, where MirroredStrategy has one replica; nor where the devices are parts of one CPU.
Needs: TensorFlow; real images (tfperf data fashion_mnist); GPUs where there are any, else logical CPU devices.
Time: about 3 minutes on 2 cores; with --quick about 30 s.
Shows: find_devices, cnn, mixed_and_mirrored
Try: --batch 64: the copies are kept equal four times as often for the same images, so mirroring costs a larger share.
"""

import time
from functools import partial

import keras
import numpy as np
import tensorflow as tf

from tfperf import Flag, Recipe, TfperfError, Verdict
from tfperf.cookbook import TOO_SLOW, speed_words, why_slower
from tfperf.data import NAMES, training_batches
from tfperf.report import interval_plot


def find_devices(cpu_devices=2):
    """Find all GPUs, or split the CPU into logical devices, so that you can try MirroredStrategy without a GPU."""
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)  # else this process takes all memory of each
    if not gpus:
        parts = [tf.config.LogicalDeviceConfiguration() for _ in range(cpu_devices)]
        tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], parts)
    return [device.name for device in tf.config.list_logical_devices("GPU" if gpus else "CPU")]


def cnn(input_shape, classes):
    """Build the source's net with float32 logits at its end: the gradient of a float16 softmax can become infinite."""
    layers = [
        keras.Input(input_shape),
        keras.layers.Conv2D(32, 3, activation="relu"),
        keras.layers.MaxPooling2D(2),
        keras.layers.Flatten(),
        keras.layers.Dense(64, activation="relu"),
        keras.layers.Dense(classes, dtype="float32"),  # under every policy
    ]
    return keras.Sequential(layers)


def mixed_and_mirrored(build, devices, policy="mixed_bfloat16"):
    """Compute in half precision, with a copy of the net on each device, which trains on its part of every batch."""
    keras.config.set_dtype_policy(policy)  # first: layers take the policy when they are built
    strategy = tf.distribute.MirroredStrategy(devices) if devices else tf.distribute.get_strategy()
    with strategy.scope():  # weights and optimizer made here have a copy on each device
        net = build()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        net.compile("adam", loss, metrics=["accuracy"], jit_compile=False)  # XLA fails under MirroredStrategy
    keras.config.set_dtype_policy("float32")
    return net  # in mixed_float16 `compile` has wrapped Adam in a LossScaleOptimizer


TOLERANCES = {"float32": 1e-5, "mixed_bfloat16": 5e-2, "mixed_float16": 5e-3}  # relative, of the first logits


def main(recipe: Recipe) -> None:
    """Train one CNN in six ways: three precisions, on one device and mirrored on all."""
    devices, batch = find_devices(), recipe.flags.batch
    if batch % len(devices):
        raise TfperfError(f"expected --batch to be a multiple of the {len(devices)} devices. Received: --batch {batch}")
    data = recipe.load_data(recipe.flags.data, quick=(3072, 1024))
    nets = build_all(recipe, data, devices)
    train(recipe, data, nets)
    steps = {}  # as `fit` takes them, with the input
    for name, net in nets.items():
        feed = training_batches(data, batch, seed=recipe.flags.seed).repeat()
        steps[name] = partial(net.train_function, iter(net.distribute_strategy.experimental_distribute_dataset(feed)))
    limit = max(recipe.flags.time_limit, 5.0)  # for at least 8 rounds, also with --quick: fewer give no verdict
    comparison = recipe.compare(steps, tolerance=None, what="one training step of each", time_limit=limit)
    explain(recipe, comparison, list(nets))
    recipe.plot(lambda figure: interval_plot(figure.subplots(), comparison, f"One training step, batch {batch}"))


def build_all(recipe: Recipe, data, devices: list[str]) -> dict:
    """Build the net in each way and check its outputs; leave out a precision in which a step takes far too long."""
    build, images = partial(cnn, data.input_shape, data.num_classes), data.test_images[:256] / np.float32(255)
    first = training_batches(data, recipe.flags.batch, seed=recipe.flags.seed, reshuffle=False).take(1)
    nets, seconds = {}, {}
    for policy, tolerance in TOLERANCES.items():
        for name, on in ((f"{policy}, one device", None), (f"{policy}, mirrored on {len(devices)}", devices)):
            keras.utils.set_random_seed(recipe.flags.seed)  # equal first weights
            net = mixed_and_mirrored(build, on, policy)
            if not nets:  # float32 on one device
                reference = net(images)
            recipe.agrees(name, net(images), reference, tolerance)
            computes, replicas = net.layers[0](images[:1]).dtype, net.distribute_strategy.num_replicas_in_sync
            if (computes, replicas) != (policy.removeprefix("mixed_"), len(on or ["one"])):
                raise TfperfError(f"'{name}' did not take effect: {replicas} replicas compute in {computes.name}")
            for _ in ("trace", "time"):
                start = time.perf_counter()
                net.fit(first, verbose=0, shuffle=False)
            seconds[name] = time.perf_counter() - start
            if seconds[f"{policy}, one device"] > TOO_SLOW * seconds["float32, one device"]:
                why = why_slower(policy.removeprefix("mixed_"), far=True)
                recipe.finds(f"{policy} is left out: a step takes over {TOO_SLOW} times as long, because {why}.")
                break
            nets[name] = net
    return nets


def train(recipe: Recipe, data, nets: dict) -> None:
    """Train for some epochs in turns, so that no net has a quieter machine than the others."""
    tests, accuracies, seconds = data.test_images / np.float32(255), {}, {name: [] for name in nets}
    for epoch in range(1, 2 if recipe.flags.quick else recipe.flags.epochs + 1):
        for name, net in nets.items():
            feed = training_batches(data, recipe.flags.batch, seed=recipe.flags.seed + epoch, reshuffle=False)
            start = time.perf_counter()
            net.fit(feed, verbose=0, shuffle=False)
            seconds[name].append(time.perf_counter() - start)
            _, accuracies[name] = net.evaluate(tests, data.test_labels, batch_size=1024, verbose=0)
            recipe.fact(f"test accuracy after epoch {epoch}: {name}", accuracies[name])
            recipe.fact(f"seconds per epoch, median: {name}", float(np.median(seconds[name])))
            recipe.console.print(f"epoch {epoch}: {seconds[name][-1]:.2f} s, accuracy {accuracies[name]:.4f}, {name}")
    lowest, highest = min(accuracies.values()), max(accuracies.values())
    recipe.finds(f"Trained on equal batches, the nets get {lowest:.1%} to {highest:.1%} of the test images right.")


def explain(recipe: Recipe, comparison, names: list[str]) -> None:
    """Say what each technique does to this machine, and why where it makes it slower; correct the source."""
    alone, mirrored = names[::2], names[1::2]
    for name in alone[1:]:
        recipe.finds(speed_words(name.partition(",")[0], comparison.ratio(alone[0], name)))
    why = ", because keeping copies of the weights equal costs more than the devices save; parts of a CPU save nothing"
    for one, name in zip(alone, mirrored, strict=True):
        ratio, together = comparison.ratio(one, name), comparison.ratio(alone[0], name).estimate
        speed = f"{ratio.estimate:.2f} times the speed of one device [{ratio.low:.2f}, {ratio.high:.2f}]"
        recipe.finds(f"{name}: {ratio.verdict}; a step has {speed}{why if ratio.verdict is Verdict.SLOWER else ''}.")
        recipe.finds(f"{name}: {together:.2f} times the speed of {alone[0]}, with all that was changed.")
    recipe.corrects(
        "MirroredStrategy() takes all visible GPUs. On the source's one V100 it has one replica and gains nothing. "
        "Curves of the loss say nothing of speed, and the source shows no time and no run without the techniques."
    )
    recipe.corrects(
        "the experimental API is gone since TensorFlow 2.9; use keras.config.set_dtype_policy, and float32 logits in "
        "place of a float16 softmax. A batch of 32 and 10 outputs leave tensor cores idle: take larger multiples of 8."
    )


if __name__ == "__main__":
    data_flag = Flag("fashion_mnist", "mnist (the source's), fashion_mnist or digits", choices=NAMES)
    Recipe(__file__, batch=256, epochs=Flag(2, "epochs to train; the source has 10"), data=data_flag).run(main)
