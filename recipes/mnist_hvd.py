"""How do many processes train one net?

Source: 004, 3.3.2.3.2 使用TensorFlow/PyTorch-lightning + HOROVOD加速
Claim: Horovod trains on many GPUs, and no code need change beyond `hvd.init()`; the listing wraps the optimizer, and
    divides the batch by the number of processes while it multiplies the rate. It names no figure.
Expect: images per second of all ranks against one, and equal weights on all; what compression costs; the source's
    mistakes beside the right way, counted.
Holds not: where a step is shorter than the exchange of its gradients; there more ranks train more slowly.
Needs: TensorFlow; Horovod (tfperf horovod install); real images (tfperf data fashion_mnist).
Time: about 1 minute on 2 cores with 2 ranks; with --quick about 25 s.
Shows: distribute, share_of, forget_to_start_equal
Try: tfperf launch -np 4: each rank has half a core here, so all ranks together train no more images a second.
Command: horovodrun -np 4 python recipes/mnist_hvd.py, or tfperf launch -np 4 python recipes/mnist_hvd.py; alone:
    python recipes/mnist_hvd.py
"""

from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import tfperf.parallel.horovod as hvd
from tfperf import Flag, Recipe, TfperfError, compare, get_net
from tfperf.data import NAMES
from tfperf.exports import writing_folder_whole
from tfperf.report import interval_plot


def distribute(net, rate, loss, compression=hvd.Compression.none):
    """Make five changes to a training of one process, so that many processes train one net."""
    hvd.init()  # 1. meet the other ranks
    if gpus := tf.config.list_physical_devices("GPU"):
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")  # 2. a GPU for each rank
    optimizer = keras.optimizers.SGD(rate * hvd.size(), momentum=0.9)  # 3. the whole batch is so many times as large
    net.compile(hvd.DistributedOptimizer(optimizer, compression=compression), loss, metrics=["accuracy"])  # 4. exchange
    return hvd.callbacks.default()  # 5. for fit: start equal, stay equal, average the metrics


def share_of(dataset, batch):
    """Give each rank its own part of the data, and the batch of one process; the source gives all ranks everything."""
    return hvd.shard(dataset).batch(batch, drop_remainder=True)


def forget_to_start_equal(net, rate, loss):
    """Make the source's mistake: without a broadcast each rank trains its own net, and says nothing."""
    net.compile(keras.optimizers.SGD(rate), loss)  # no wrapped optimizer starts it equal


FOLDER = Path("saved_models")
RATE, BURST, CHECKED_STEPS = 0.02, 8, 4  # of one rank; steps timed at once; steps compared with one process


def main(recipe: Recipe) -> None:
    """Train one CNN on all ranks, and prove that it is the training of one process."""
    hvd.init()
    data = hvd.rank_0_first(lambda: recipe.load_data(recipe.flags.data))  # it may have to be fetched, once
    batch, whole = recipe.flags.batch, recipe.flags.batch * hvd.size()
    if whole > len(data.train_images):
        most = len(data.train_images)
        raise TfperfError(f"expected --batch times {hvd.size()} ranks to be at most {most}. Received: --batch {batch}")
    images, tests = data.train_images / np.float32(255), data.test_images / np.float32(255)

    def pairs():  # a new data set each time, so that each is shuffled alike
        return shuffled(images, data.train_labels, recipe.flags.seed)

    net, alone = build(recipe, data, hvd.rank()), build(recipe, data)  # each rank starts from its own seed
    distribute(net, RATE, loss_of())
    alone.compile(keras.optimizers.SGD(RATE * hvd.size(), momentum=0.9), loss_of(), metrics=["accuracy"])
    net.fit(share_of(pairs(), batch).take(CHECKED_STEPS), verbose=0, shuffle=False)
    alone.fit(pairs().batch(whole, drop_remainder=True).take(CHECKED_STEPS), verbose=0, shuffle=False)
    name = f"logits after {CHECKED_STEPS} steps, {hvd.size()} ranks against one process"
    recipe.agrees(name, net(tests[:256]), alone(tests[:256]), 1e-5)
    measure_scaling(recipe, data, pairs)
    if hvd.size() > 1:
        count_mistakes(recipe, data, pairs, tests[:256], alone(tests[:256]))

    FOLDER.mkdir(exist_ok=True)
    trained = build(recipe, data, hvd.rank())
    callbacks = [
        *distribute(trained, RATE, loss_of()),
        hvd.callbacks.LearningRateWarmupCallback(RATE * hvd.size(), 1),  # over the first epoch
        hvd.callbacks.CheckpointCallback(FOLDER / "mnist_hvd.keras"),  # rank 0 writes
    ]
    epochs = 1 if recipe.flags.quick else recipe.flags.epochs
    trained.fit(share_of(pairs(), batch), epochs=epochs, callbacks=callbacks, verbose=hvd.verbose(2), shuffle=False)
    digests = hvd.allgather_object(hvd.weights_digest(trained))
    recipe.table(("rank", "digest of the weights"), list(enumerate(digests)))
    if len(set(digests)) > 1:
        raise TfperfError(f"expected equal weights on all ranks, found the digests {digests}")
    recipe.fact("digest of the weights, equal on all ranks", digests[0])
    accuracy = float(trained.evaluate(tests, data.test_labels, batch_size=1024, verbose=0)[1])
    recipe.fact("test accuracy", accuracy)
    recipe.finds(f"{accuracy:.1%} of the test images are right; all ranks hold the same weights, bit by bit.")
    if hvd.rank() == 0:  # the last exchange is done: the others end, and only this one writes
        with writing_folder_whole(FOLDER / "mnist_hvd" / "1") as folder:
            trained.export(folder, verbose=False)


def build(recipe: Recipe, data, more: int = 0):
    """Build the CNN, from the seed of a rank."""
    shape = {"num_classes": data.num_classes, "input_shape": data.input_shape}
    return get_net("mnist_cnn", **shape, seed=recipe.flags.seed + more)


def loss_of():
    """Make the loss, of logits."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def shuffled(images, labels, seed: int) -> tf.data.Dataset:
    """Shuffle in the same order on every rank, so that shares do not overlap."""
    options = tf.data.Options()
    options.autotune.enabled = False  # nothing here is tuned, and `fit` would wait at its end until the tuner wakes
    return tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(len(images), seed=seed).with_options(options)


def measure_scaling(recipe: Recipe, data, pairs) -> None:
    """Time steps of all ranks together beside steps of one rank while the others wait."""
    alone, ours = build(recipe, data), build(recipe, data)
    alone.compile(keras.optimizers.SGD(RATE, momentum=0.9), loss_of())
    distribute(ours, RATE, loss_of())

    def steps_of(net):
        net.make_train_function()
        batches = iter(share_of(pairs(), recipe.flags.batch).repeat())
        return lambda: [net.train_function(batches) for _ in range(BURST)]

    names, one, every = ("one rank alone", f"all {hvd.size()} ranks"), steps_of(alone), steps_of(ours)
    limits = {"time_limit": recipe.flags.time_limit, "seed": recipe.flags.seed}
    comparison = hvd.lead({names[1]: every}, lambda ours: compare({names[0]: one, **ours}, **limits))
    if comparison is None:
        return
    recipe.add(comparison)
    speeds = [m.throughput(BURST * recipe.flags.batch) for m in comparison.measurements]
    efficiency = comparison.ratio(*names)  # each rank does in `every` what it does alone, so 1 would be perfect
    recipe.fact("images/s of one rank alone", speeds[0])
    recipe.fact("images/s of all ranks", speeds[1] * hvd.size())
    recipe.fact("scaling efficiency", efficiency.estimate)
    recipe.finds(
        f"{hvd.size()} ranks train {speeds[1] * hvd.size():,.0f} images/s, one alone {speeds[0]:,.0f}: a scaling "
        f"efficiency of {efficiency.estimate:.0%} [{efficiency.low:.0%}, {efficiency.high:.0%}]."
    )
    recipe.plot(lambda figure: interval_plot(figure.subplots(), comparison, f"{BURST} training steps"))


def count_mistakes(recipe: Recipe, data, pairs, images, expected) -> None:
    """Count what compression costs, and what each of the source's mistakes does."""
    squeezed, apart = build(recipe, data), build(recipe, data, hvd.rank())
    distribute(squeezed, RATE, loss_of(), hvd.Compression.fp16)
    forget_to_start_equal(apart, RATE, loss_of())
    for net in (squeezed, apart):
        net.fit(share_of(pairs(), recipe.flags.batch).take(CHECKED_STEPS), verbose=0, shuffle=False)
    error = float(np.abs(squeezed(images) - expected).max() / np.abs(expected).max())
    weights = hvd.allgather_object(np.concatenate([np.ravel(one) for one in apart.get_weights()]))
    distance = float(np.linalg.norm(weights[1] - weights[0]) / np.linalg.norm(weights[0]))
    steps = len(data.train_images) // recipe.flags.batch
    recipe.fact("relative error of the logits with fp16 compression", error)
    recipe.fact("distance of two ranks without a broadcast, by the weights", distance)
    recipe.finds(
        f"Compression.fp16 sends 2 bytes for each gradient, not 4; the logits differ by {error:.1e} of the largest."
    )
    recipe.corrects(f"without a broadcast two ranks are {distance:.0%} of their weights apart, and stay so.")
    recipe.corrects(f"without shares each rank takes all {steps} batches of an epoch, with them {steps // hvd.size()}.")
    recipe.corrects(
        "divide the batch or multiply the rate, not both: if the whole batch stays, the rate must stay too."
    )


if __name__ == "__main__":
    data_flag = Flag("fashion_mnist", "mnist (the source's), fashion_mnist or digits", choices=NAMES)
    Recipe(__file__, batch=64, epochs=Flag(2, "epochs to train"), data=data_flag).run(main)
