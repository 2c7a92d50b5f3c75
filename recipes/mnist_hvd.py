"""How do many processes train one net?

Source: 004, 3.3.2.3.2 使用TensorFlow/PyTorch-lightning + HOROVOD加速
Claim: Horovod trains on many GPUs, and no code need change beyond `hvd.init()`. The listing wraps the optimizer,
    divides the batch by the number of processes and multiplies the rate by it. It names no figure.
Expect: images/s of all ranks against one, equal weights on all of them, and each of the source's mistakes counted.
Holds not: where a step is shorter than the exchange of its gradients; there more ranks train more slowly.
Needs: TensorFlow; Horovod (tfperf horovod install); real images (tfperf data fashion_mnist).
Time: about 1 minute on 2 cores with 2 ranks; with --quick about 30 s.
Shows: distribute, share_of, sources_batches, sources_step
Try: tfperf launch -np 4: each rank has half a core here, so all ranks together train few more images a second.
Command: horovodrun -np 4 python recipes/mnist_hvd.py, or tfperf launch -np 4 python recipes/mnist_hvd.py
"""

from functools import partial

import keras
import numpy as np
import tensorflow as tf

import tfperf.parallel.horovod as hvd
from tfperf import Flag, Recipe, TfperfError, export, get_net
from tfperf.data import NAMES
from tfperf.report import interval_plot


def distribute(build, rate, loss, **options):
    """Make five changes to the training of one process, and many processes train one net."""
    hvd.init()  # 1. meet the other ranks, before TensorFlow uses a GPU
    if gpus := tf.config.list_physical_devices("GPU"):
        tf.config.set_visible_devices(gpus[hvd.local_rank() % len(gpus)], "GPU")  # 2. a GPU for each rank
    net = build()
    optimizer = keras.optimizers.SGD(rate * hvd.size(), momentum=0.9)  # 3. as a step takes size times as many images
    net.compile(hvd.DistributedOptimizer(optimizer, **options), loss, metrics=["accuracy"])  # 4. average the gradients
    return net, hvd.callbacks.default()  # 5. for fit: begin with the weights of rank 0, average the metrics


def share_of(dataset, batch):
    """Give each rank its own part of the data, and as large a batch as one process had."""
    return hvd.shard(dataset).batch(batch, drop_remainder=True)


def sources_batches(dataset, batch):
    """Make two of the source's mistakes: give each rank all data, and divide the batch where the rate is multiplied."""
    return dataset.batch(batch // hvd.size(), drop_remainder=True)


def sources_step(net, optimizer, loss, images, labels):
    """Make the third: without a broadcast each rank adds the same average to first weights of its own."""
    with tf.GradientTape() as tape:
        value = loss(labels, net(images, training=True))
    gradients = [hvd.allreduce(gradient) for gradient in tape.gradient(value, net.trainable_variables)]
    optimizer.apply(gradients, net.trainable_variables)


RATE, BURST = 0.02, 8  # of one rank; steps timed at once
FEW, MANY = 4, 64  # steps compared with one process, and steps of a mistake; ranks whose rate is tried
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def main(recipe: Recipe) -> None:
    """Train one CNN on all ranks, and prove that it is the training of one process."""
    hvd.init()
    data = hvd.rank_0_first(lambda: recipe.load_data(recipe.flags.data))  # it may have to be fetched, once
    batch, size, most = recipe.flags.batch, hvd.size(), len(data.train_images) // hvd.size()
    if not size <= batch <= most:
        raise TfperfError(f"expected --batch to be from {size} to {most} with {size} ranks. Received: --batch {batch}")
    images, tests = data.train_images / np.float32(255), (data.test_images / np.float32(255), data.test_labels)
    pairs = tf.data.Dataset.from_tensor_slices((images, data.train_labels))
    pairs = pairs.shuffle(len(images), seed=recipe.flags.seed, reshuffle_each_iteration=False)  # the same on all ranks
    shares = share_of(pairs, batch)
    build = partial(get_net, "mnist_cnn", num_classes=data.num_classes, input_shape=data.input_shape)
    own = partial(build, seed=recipe.flags.seed + hvd.rank())  # begins with weights that no other rank has

    alone = train_alone(partial(build, seed=recipe.flags.seed), RATE * size, pairs.batch(batch * size).take(FEW))
    for name, sent, tolerance in (("fp16", 2, 1e-2), ("none", 4, 1e-3)):
        net, callbacks = distribute(own, RATE, LOSS, compression=getattr(hvd.Compression, name))
        net.fit(shares.take(FEW), callbacks=callbacks, verbose=0, shuffle=False)
        what = f"{FEW} steps of {size} ranks, Compression.{name}"
        error = recipe.agrees(what, net(images[:256]), alone(images[:256]), tolerance).relative_error
        if size > 1:  # one rank sends nothing
            recipe.finds(f"Compression.{name} sends {sent} bytes a gradient; the logits differ by {error:.1e}.")
    measure_scaling(recipe, net, alone, next(iter(shares)))
    if size > 1:
        count_mistakes(recipe, own, pairs, tests)

    net, callbacks = distribute(own, RATE, LOSS)
    callbacks.append(hvd.callbacks.LearningRateWarmupCallback(RATE * size, 1))  # over the first epoch
    net.fit(shares, epochs=recipe.flags.epochs, callbacks=callbacks, verbose=hvd.verbose(2), shuffle=False)
    digests, (_, accuracy) = hvd.allgather_object(hvd.weights_digest(net)), net.evaluate(*tests, verbose=0)
    recipe.table(("rank", "digest of the weights"), list(enumerate(digests)))
    recipe.fact("test accuracy", accuracy)
    recipe.finds(f"{accuracy:.1%} of the test images are right; all ranks hold the same weights, bit by bit.")
    if hvd.rank() == 0:  # the last exchange is done; only this rank writes
        recipe.console.print(f"Exported: {export(net, 'saved_models', name='mnist_hvd')}")


def train_alone(build, rate: float, batches) -> keras.Model:
    """Train in this process, without the others."""
    net = build()
    net.compile(keras.optimizers.SGD(rate, momentum=0.9), LOSS, metrics=["accuracy"])
    net.fit(batches, verbose=0, shuffle=False)
    return net


def measure_scaling(recipe: Recipe, distributed, alone, pairs) -> None:
    """Time steps of all ranks together beside steps of one rank while the others wait."""
    one, every = (lambda net=net: [net.train_on_batch(*pairs) for _ in range(BURST)] for net in (alone, distributed))
    comparison = hvd.lead({"all ranks": every}, lambda ours: recipe.compare({"one rank": one} | ours, tolerance=None))
    if hvd.rank() == 0:  # which alone measures
        ratio = comparison.ratio("one rank", "all ranks")  # 1 would be perfect: each does what it does alone
        first, last = (m.throughput(BURST * recipe.flags.batch) for m in comparison.measurements)
        recipe.fact("scaling efficiency", ratio.estimate)
        recipe.finds(
            f"{hvd.size()} ranks train {last * hvd.size():,.0f} images/s, one alone {first:,.0f}: a scaling efficiency "
            f"of {ratio.estimate:.0%} [{ratio.low:.0%}, {ratio.high:.0%}]."
        )
        recipe.plot(lambda figure: interval_plot(figure.subplots(), comparison, f"{BURST} training steps on each rank"))


def count_mistakes(recipe: Recipe, own, pairs, tests) -> None:
    """Count what each of the source's mistakes does."""
    batches, shares = sources_batches(pairs, recipe.flags.batch), share_of(pairs, recipe.flags.batch)
    net, optimizer = own(), keras.optimizers.SGD(RATE)
    kernels = [hvd.allgather_object(net.get_weights()[0])]  # of the first layer, by rank
    for images, labels in batches.take(MANY):
        sources_step(net, optimizer, LOSS, images, labels)
    kernels.append(hvd.allgather_object(net.get_weights()[0]))
    start, end = (float(np.linalg.norm(last - first)) for first, *_, last in kernels)
    recipe.fact("distance of two ranks without a broadcast, at the end by that at the start", end / start)
    recipe.corrects(
        f"without a broadcast the first layers of two ranks are {start:.5f} apart at the start, and {end:.5f} after "
        f"{len(batches.take(MANY))} steps: all ranks add the same average. Each rank reads all data, so an epoch takes "
        f"{len(batches)} steps. With shares it takes {len(shares)}."
    )
    steps = pairs.batch(recipe.flags.batch).take(MANY)
    right, wrong = (train_alone(own, rate, steps).evaluate(*tests, verbose=0)[1] for rate in (RATE, MANY * RATE))
    recipe.fact("test accuracy at the rate of one process", right)
    recipe.fact(f"test accuracy at the rate of {MANY} ranks whose batch was divided", wrong)
    recipe.corrects(
        f"divide the batch or multiply the rate, not both: {len(steps)} steps get {right:.0%} of the test images right "
        f"at the rate of one process, {wrong:.0%} at that of {MANY} ranks that share its batch."
    )
    recipe.corrects("hvd.init() is not enough: the listing lacks a GPU for each rank, the broadcast, and shares.")
    recipe.corrects("Horovod has no parameter server; with Keras 3 its own Keras module can train without exchanging.")


if __name__ == "__main__":
    data_flag = Flag("fashion_mnist", "mnist (the source's), fashion_mnist or digits", choices=NAMES)
    Recipe(__file__, batch=64, epochs=Flag(2, "epochs to train"), data=data_flag).run(main)
