"""How do many processes train one net?

Command: horovodrun -np 4 python recipes/mnist_hvd.py, or tfperf launch -np 4 python recipes/mnist_hvd.py; alone:
    python recipes/mnist_hvd.py, or tfperf run mnist_hvd
Needs: TensorFlow; Horovod (tfperf horovod install); real images (tfperf data fashion_mnist).
Time: about 1 minute on 2 cores with 2 ranks; with --quick about 20 s.
Source: Horovod trains on many GPUs with few changes: wrap the optimizer, multiply the learning rate by the number
    of processes, give each its share of the data and let the first one write. It names no figure.
Expect: images per second of all ranks against one of them alone, the digest of the weights on each rank, test
    accuracy beside that of one process with the whole batch; a checkpoint and a SavedModel under saved_models/.
"""

from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import tfperf.parallel.horovod as hvd
from tfperf import Benchmark, Flag, Recipe, TfperfError, check_agreement, compare, get_net, load
from tfperf.data import NAMES
from tfperf.files import writing_folder_whole

FOLDER = Path("saved_models")
RATE = 0.02  # of one rank; SGD with momentum
WARM_UP_EPOCHS = 1
CHECKED_STEPS = 4  # compared with one process; after more of them rounding grows as training does
TOLERANCE = 1e-5  # relative, of logits after those steps
BURST = 8  # steps timed at once, so that telling the ranks to start costs little of it
QUICK_IMAGES = (4096, 1024)  # train, test


def main(recipe: Recipe) -> None:
    """Train one CNN on all ranks, and prove that it is the training of one process."""
    hvd.init()
    data = hvd.rank_0_first(lambda: load(recipe.flags.data))  # it may have to be fetched, once
    if recipe.flags.quick:
        data = data.take(min(QUICK_IMAGES[0], len(data.train_images)), min(QUICK_IMAGES[1], len(data.test_images)))
    if recipe.flags.batch * hvd.size() > len(data.train_images):
        raise TfperfError(
            f"expected --batch to be at most the {len(data.train_images)} images divided by {hvd.size()} ranks. "
            f"Received: --batch {recipe.flags.batch}"
        )
    recipe.uses(data.describe())
    recipe.console.print(f"Ranks: {hvd.size()}, {recipe.flags.batch} images each a step", markup=False)

    check_answers(recipe, data)
    measure_scaling(recipe, data)
    net = train(recipe, data)

    digests = hvd.allgather_object(hvd.weights_digest(net))
    for rank, digest in enumerate(digests):
        recipe.console.print(f"  rank {rank}: weights {digest}", markup=False)
    if len(set(digests)) > 1:
        raise TfperfError(f"expected equal weights on all ranks, found the digests {digests}")
    recipe.fact("digest of the weights, equal on all ranks", digests[0])
    if hvd.rank() == 0:  # the last exchange is done: the others end, and only this one writes
        finish(recipe, data, net)


def build(data, seed: int) -> keras.Model:
    """The CNN, compiled with the rate of one rank, for one process."""
    net = get_net("mnist_cnn", num_classes=data.num_classes, input_shape=data.input_shape, seed=seed)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    net.compile(keras.optimizers.SGD(RATE, momentum=0.9), loss, metrics=["accuracy"])
    return net


def build_distributed(data, seed: int) -> keras.Model:
    """The same on all ranks: the optimizer is wrapped, and the rate multiplied. Each rank starts from its own seed."""
    net = build(data, seed + hvd.rank())
    net.optimizer.learning_rate = RATE * hvd.size()
    hvd.DistributedOptimizer(net.optimizer, compression=hvd.Compression.none)
    return net


def pairs(data, seed: int) -> tf.data.Dataset:
    """Images (height, width, channels) of 0 to 1 and their labels, in the same shuffled order on every rank."""
    whole = tf.data.Dataset.from_tensor_slices((data.train_images, data.train_labels)).cache()
    shuffled = whole.shuffle(len(data.train_images), seed=seed)
    scaled = shuffled.map(lambda image, label: (tf.cast(image, tf.float32) / 255, label))
    options = tf.data.Options()
    options.autotune.enabled = False  # nothing here is tuned, and at its end `fit` would wait until the tuner wakes
    return scaled.with_options(options)


def check_answers(recipe: Recipe, data) -> None:
    """Some steps on all ranks must give what the same steps give in one process with the whole batch."""
    batch, seed = recipe.flags.batch, recipe.flags.seed
    ours = build_distributed(data, seed)
    share = hvd.shard(pairs(data, seed)).batch(batch, drop_remainder=True).take(CHECKED_STEPS)
    ours.fit(share, verbose=0, shuffle=False)
    alone = build(data, seed)  # rank 0's start, which all ranks were given
    alone.optimizer.learning_rate = RATE * hvd.size()
    whole = pairs(data, seed).batch(batch * hvd.size(), drop_remainder=True).take(CHECKED_STEPS)
    alone.fit(whole, verbose=0, shuffle=False)
    images = data.test_images[:256] / np.float32(255)  # (256, height, width, channels)
    name = f"logits after {CHECKED_STEPS} steps, {hvd.size()} ranks against one process"
    recipe.add(check_agreement(name, ours(images), alone(images), TOLERANCE))


def measure_scaling(recipe: Recipe, data) -> None:
    """Time steps of all ranks together beside steps of one rank while the others wait."""
    batch, seed = recipe.flags.batch, recipe.flags.seed

    def steps_of(net: keras.Model):
        net.make_train_function()
        iterator = iter(hvd.shard(pairs(data, seed)).batch(batch, drop_remainder=True).repeat())
        return lambda: [net.train_function(iterator) for _ in range(BURST)]

    alone, together = steps_of(build(data, seed)), steps_of(build_distributed(data, seed))
    if hvd.size() == 1:
        measurement = Benchmark(f"{BURST} steps", time_limit=recipe.flags.time_limit).measure(alone)
        recipe.add(measurement)
        recipe.fact("images/s", measurement.throughput(BURST * batch))
        recipe.means(
            f"One rank trains {measurement.throughput(BURST * batch):,.0f} images/s. More: "
            "tfperf launch -np 2 python recipes/mnist_hvd.py"
        )
        recipe.plot(lambda figure: draw_alone(figure, measurement))
        return
    names = ("one rank alone", f"all {hvd.size()} ranks")

    def side_by_side(ours: dict):
        with recipe.progress("steps of one rank beside steps of all") as show:
            return compare({names[0]: alone, **ours}, time_limit=recipe.flags.time_limit, on_progress=show)

    comparison = hvd.lead({names[1]: together}, side_by_side)
    if comparison is None:
        return
    recipe.add(comparison)
    one, every = (m.throughput(BURST * batch) for m in comparison.measurements)
    efficiency = comparison.ratio(*names)  # each rank does in `every` what it does alone, so 1 would be perfect
    recipe.fact("images/s of one rank alone", one)
    recipe.fact("images/s of all ranks", every * hvd.size())
    recipe.fact("scaling efficiency", efficiency.estimate)
    recipe.means(
        f"{hvd.size()} ranks train {every * hvd.size():,.0f} images/s, one alone {one:,.0f}: a scaling efficiency of "
        f"{efficiency.estimate:.0%} [{efficiency.low:.0%}, {efficiency.high:.0%}]."
    )
    recipe.plot(lambda figure: draw(figure, comparison))


def train(recipe: Recipe, data) -> keras.Model:
    """Train on each rank's share, the rate rising to its full height over the first epoch."""
    net = build_distributed(data, recipe.flags.seed)
    share = hvd.shard(pairs(data, recipe.flags.seed)).batch(recipe.flags.batch, drop_remainder=True).prefetch(2)
    FOLDER.mkdir(exist_ok=True)
    callbacks = [
        *hvd.callbacks.default(),  # start equal, stay equal, average the metrics
        warm_up(),
        hvd.callbacks.CheckpointCallback(FOLDER / "mnist_hvd.keras"),
    ]
    net.fit(share, epochs=epochs(recipe), callbacks=callbacks, verbose=hvd.verbose(2), shuffle=False)
    return net


def warm_up() -> keras.callbacks.Callback:
    """From the rate of one rank to that of all, batch by batch."""
    return hvd.callbacks.LearningRateWarmupCallback(RATE * hvd.size(), WARM_UP_EPOCHS)


def epochs(recipe: Recipe) -> int:
    """How many to train."""
    return 1 if recipe.flags.quick else recipe.flags.epochs


def finish(recipe: Recipe, data, net: keras.Model) -> None:
    """Export, and compare the accuracy with that of one process that trains the same batches whole."""
    exported = FOLDER / "mnist_hvd" / "1"
    with writing_folder_whole(exported) as folder:
        net.export(folder, verbose=False)
    recipe.console.print(f"Checkpoint: {FOLDER / 'mnist_hvd.keras'}, SavedModel: {exported}", markup=False)

    alone = build(data, recipe.flags.seed)
    alone.optimizer.learning_rate = RATE * hvd.size()
    whole = pairs(data, recipe.flags.seed).batch(recipe.flags.batch * hvd.size(), drop_remainder=True).prefetch(2)
    alone.fit(whole, epochs=epochs(recipe), callbacks=[warm_up()], verbose=0, shuffle=False)
    images = data.test_images / np.float32(255)
    ours, theirs = (n.evaluate(images, data.test_labels, batch_size=1024, verbose=0)[1] for n in (net, alone))
    recipe.fact("test accuracy", float(ours))
    recipe.fact("test accuracy of one process with the whole batch", float(theirs))
    recipe.means(
        f"Test accuracy {ours:.1%} on {hvd.size()} rank{'s' * (hvd.size() > 1)}, {theirs:.1%} in one process with "
        "the whole batch; all ranks hold the same weights, bit by bit."
    )


def draw(figure, comparison) -> None:
    """Draw the steps of one rank and of all."""
    from tfperf.report.plots import interval_plot

    interval_plot(figure.subplots(), comparison, f"{BURST} training steps: longer with more ranks is what they lose")


def draw_alone(figure, measurement) -> None:
    """Draw how the times of one rank are spread."""
    from tfperf.report.plots import distribution_plot

    distribution_plot(figure.subplots(), (measurement,), f"{BURST} training steps of one rank")


if __name__ == "__main__":
    data_flag = Flag("fashion_mnist", "mnist (the source's), fashion_mnist or digits", choices=NAMES)
    Recipe(__file__, batch=64, epochs=Flag(2, "epochs to train"), data=data_flag).run(main)
