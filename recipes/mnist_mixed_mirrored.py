"""What do mixed precision and MirroredStrategy buy, alone and together?

Source: 004, 3.4 混合精度训练+GPU加速方案结合实践案例分享
Claim: mixed precision and MirroredStrategy together make training faster; a small CNN on MNIST, 10 epochs, Adam, on
    one V100. The source shows no time and no run without them.
Expect: seconds per epoch and test accuracy with and without each technique, one training step of each side by side,
    and the reason where a technique makes this machine slower. Fashion-MNIST unless --data mnist.
Holds not: on one device: MirroredStrategy on the one V100 of the source is one replica, and gains nothing.
Needs: TensorFlow; real images (tfperf data fashion_mnist); GPUs where there are any, else logical CPU devices.
Time: about 3 minutes on 2 cores; with --quick about 40 s.
Shows: find_devices, build
Try: --batch 1024: the copies of the weights are kept equal once for four times the images, so mirroring costs a
    smaller share.
"""

import time

import keras
import numpy as np
import tensorflow as tf

from tfperf import Flag, Recipe, TfperfError, compare, get_net, load
from tfperf.cookbook import TOO_SLOW, why_slower
from tfperf.data import NAMES
from tfperf.measure import Verdict

POLICIES = ("float32", "mixed_bfloat16", "mixed_float16")
TOLERANCES = {"float32": 1e-5, "mixed_bfloat16": 5e-2, "mixed_float16": 5e-3}  # relative, of the first logits
CPU_REPLICAS = 2  # logical devices of a machine without GPUs
QUICK_IMAGES = (4096, 1024)  # train, test
ENOUGH_SECONDS = 8.0  # for at least 8 rounds of six steps, also with --quick: fewer give no verdict


def find_devices() -> list[str]:
    """All GPUs; where there are none, the CPU split into logical devices, which MirroredStrategy takes as well."""
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)  # else the first one takes all memory
    if gpus:
        return [device.name for device in tf.config.list_logical_devices("GPU")]
    logical = [tf.config.LogicalDeviceConfiguration() for _ in range(CPU_REPLICAS)]
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], logical)
    return [device.name for device in tf.config.list_logical_devices("CPU")]


def build(recipe: Recipe, data, policy: str, strategy) -> tuple:
    """The CNN under a precision policy, its variables mirrored on the strategy's devices; equal first weights."""
    keras.config.set_dtype_policy(policy)
    with strategy.scope():
        net = get_net("mnist_cnn", num_classes=data.num_classes, input_shape=data.input_shape, seed=recipe.flags.seed)
        net.compile(
            optimizer="adam",  # under mixed_float16 Keras wraps it in a LossScaleOptimizer
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            jit_compile=False,  # explicit XLA fails under MirroredStrategy; all ways run without it
        )
    keras.config.set_dtype_policy("float32")
    return net, strategy


def main(recipe: Recipe) -> None:
    """Train one CNN in six ways: three precisions, on one device and mirrored on all."""
    tf.get_logger().setLevel("ERROR")  # six nets make six traces, which TensorFlow takes for one that retraces
    devices = find_devices()
    data = load(recipe.flags.data)
    if recipe.flags.quick:
        data = data.take(min(QUICK_IMAGES[0], len(data.train_images)), min(QUICK_IMAGES[1], len(data.test_images)))
    if recipe.flags.batch % len(devices) or recipe.flags.batch > len(data.train_images):
        raise TfperfError(
            f"expected --batch to be a multiple of the {len(devices)} devices and at most the "
            f"{len(data.train_images)} images. Received: --batch {recipe.flags.batch}"
        )
    recipe.uses(data)
    recipe.console.print(f"Devices: {', '.join(devices)}", markup=False)

    ways = {}  # name -> (net, strategy, iterator over batches on its devices)
    for policy in POLICIES:
        for mirrored in (False, True):
            name = f"{policy}, {f'mirrored on {len(devices)}' if mirrored else 'one device'}"
            strategy = tf.distribute.MirroredStrategy(devices) if mirrored else tf.distribute.get_strategy()
            ways[name] = build(recipe, data, policy, strategy)
    check_modes(ways, len(devices))
    check_answers(recipe, data, ways)
    ways = without_slow(recipe, data, ways)
    train(recipe, data, ways)

    steps = {name: step_of(net, strategy, batches(recipe, data)) for name, (net, strategy) in ways.items()}
    with recipe.progress("one training step of each, side by side") as show:
        limit = max(recipe.flags.time_limit, ENOUGH_SECONDS)
        comparison = compare(steps, time_limit=limit, seed=recipe.flags.seed, on_progress=show)
    recipe.add(comparison)
    explain(recipe, comparison, [policy for policy in POLICIES if f"{policy}, one device" in ways], len(devices))
    recipe.plot(lambda figure: draw(figure, recipe, comparison))


def batches(recipe: Recipe, data) -> tf.data.Dataset:
    """Shuffled batches of the global size: images (batch, height, width, channels) of 0 to 1, labels (batch,)."""
    pairs = tf.data.Dataset.from_tensor_slices((data.train_images, data.train_labels)).cache()
    pairs = pairs.shuffle(len(data.train_images), seed=recipe.flags.seed)
    pairs = pairs.batch(recipe.flags.batch, drop_remainder=True)  # replicas get equal parts
    scaled = pairs.map(lambda images, labels: (tf.cast(images, tf.float32) / 255, labels))
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF  # one host
    options.autotune.enabled = False  # nothing here is tuned, and the end of a pipeline waits until its tuner wakes
    return scaled.with_options(options).prefetch(2)


def check_modes(ways: dict, replicas: int) -> None:
    """No mode on trust: the convolution computes in the policy's type, and every weight has its mirrors."""
    for name, (net, strategy) in ways.items():
        policy = name.partition(",")[0]
        wanted = policy.removeprefix("mixed_")
        images = tf.zeros([1, *net.input_shape[1:]])
        convolved = net.layers[0](images)
        scales_loss = isinstance(net.optimizer, keras.optimizers.LossScaleOptimizer)
        copies = len(strategy.experimental_local_results(net.trainable_variables[0].value))
        expected = replicas if strategy.num_replicas_in_sync > 1 else 1
        if convolved.dtype != wanted or copies != expected or scales_loss != (wanted == "float16"):
            raise TfperfError(
                f"'{name}' did not take effect: it computes in {convolved.dtype.name}, holds {copies} copies of "
                f"each weight, and {'scales' if scales_loss else 'does not scale'} the loss"
            )


def check_answers(recipe: Recipe, data, ways: dict) -> None:
    """The same first weights must give the same logits in every way, as near as the number format can."""
    images = tf.constant(data.test_images[:256] / np.float32(255))  # (256, height, width, channels)
    reference = next(iter(ways.values()))[0](images)  # float32, one device, eager
    for name, (net, _) in ways.items():
        recipe.agrees(name, net(images), reference, TOLERANCES[name.partition(",")[0]])


def without_slow(recipe: Recipe, data, ways: dict) -> dict:
    """The ways, traced and each two steps trained; without the policies in which a step takes far too long."""
    feed, seconds, slow = batches(recipe, data).take(1), {}, []
    for name, (net, _) in ways.items():
        policy, _, where = name.partition(", ")
        if policy in slow:
            continue
        for _ in ("traces", "is timed"):
            start = time.perf_counter()
            net.fit(feed, verbose=0, shuffle=False)
            seconds[name] = time.perf_counter() - start
        if where == "one device" and seconds[name] > TOO_SLOW * seconds["float32, one device"]:
            slow.append(policy)
            recipe.fact(f"seconds of a step, too many to train with: {policy}", seconds[name])
            times, why = (
                seconds[name] / seconds["float32, one device"],
                why_slower(policy.removeprefix("mixed_"), far=True),
            )
            recipe.finds(
                f"{policy}: a step took {times:.0f} times as long as in float32, because {why}. It was left out."
            )
    return {name: way for name, way in ways.items() if name.partition(",")[0] not in slow}


def train(recipe: Recipe, data, ways: dict) -> None:
    """Train the ways for some epochs, in turn, so that none has a quieter machine than the others."""
    epochs = 1 if recipe.flags.quick else recipe.flags.epochs
    test_images = data.test_images / np.float32(255)
    feeds = {name: batches(recipe, data) for name in ways}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    recipe.console.print("\nTraining:")
    for epoch in range(epochs):
        for name, (net, _) in ways.items():
            start = time.perf_counter()
            net.fit(feeds[name], initial_epoch=epoch, epochs=epoch + 1, verbose=0, shuffle=False)
            seconds[name].append(time.perf_counter() - start)
            _, accuracy = net.evaluate(test_images, data.test_labels, batch_size=1024, verbose=0)
            line = f"  epoch {epoch + 1}/{epochs}  {seconds[name][-1]:6.2f} s  test accuracy {accuracy:.4f}  {name}"
            recipe.console.print(line, markup=False)
            recipe.fact(f"test accuracy after epoch {epoch + 1}: {name}", float(accuracy))
    for name, times in seconds.items():
        recipe.fact(f"seconds per epoch, median: {name}", float(np.median(times)))


def step_of(net, strategy, feed: tf.data.Dataset):
    """One training step as `fit` takes it, input pipeline included, as a function without arguments."""
    iterator = iter(strategy.experimental_distribute_dataset(feed.repeat()))
    return lambda: net.train_function(iterator)


def explain(recipe: Recipe, comparison, policies: list[str], replicas: int) -> None:
    """Say what each technique did to this machine, and why where it made it slower."""
    for policy in policies[1:]:
        ratio = comparison.ratio("float32, one device", f"{policy}, one device")
        say(recipe, policy, ratio, why_slower(policy.removeprefix("mixed_"), far=False))
    on_cpu = not tf.config.list_physical_devices("GPU")
    for policy in policies:
        ratio = comparison.ratio(f"{policy}, one device", f"{policy}, mirrored on {replicas}")
        shared = "its devices are parts of one CPU: no arithmetic is added, but copies of the weights are kept equal"
        reason = shared if on_cpu else "at this size, keeping the copies equal costs more than the devices add"
        say(recipe, f"MirroredStrategy under {policy}", ratio, reason)


def say(recipe: Recipe, technique: str, ratio, reason: str) -> None:
    """One sentence on one technique; the reason belongs to it only if it is slower."""
    because = f", because {reason}" if ratio.verdict is Verdict.SLOWER else ""
    speed = f"{ratio.estimate:.2f} times the speed [{ratio.low:.2f}, {ratio.high:.2f}]"
    recipe.finds(f"{technique}: {ratio.verdict} here, a step at {speed}{because}.")


def draw(figure, recipe: Recipe, comparison) -> None:
    """Draw one training step of each way."""
    from tfperf.report.plots import interval_plot

    interval_plot(figure.subplots(), comparison, f"One training step of mnist_cnn, batch {recipe.flags.batch}")


if __name__ == "__main__":
    data_flag = Flag("fashion_mnist", "mnist (the source's), fashion_mnist or digits", choices=NAMES)
    Recipe(__file__, batch=256, epochs=Flag(2, "epochs to train; the source has 10"), data=data_flag).run(main)
