"""How does the training move to the cluster the company has?

Source: 004, 2.5 什么是TensorFlow On Spark?
Claim: TensorFlowOnSpark runs TensorFlow programs on Spark's data parallelism: parameter servers hold the variables,
    the other nodes train on mini-batches, and the data is shared out by the model's performance. The source names no
    figure.
Expect: one CNN trained in one process, through Horovod on Spark, and through TensorFlowOnSpark's cluster: the same
    answers, weights equal on all ranks, the lines that had to change, and what each costs in seconds. TensorFlow's
    own servers listen on all interfaces whatever they are told. They run in a network of their own where the kernel
    allows one, and where it does not only with --open-ports allow.
Holds not: for a training shorter than Spark takes to start its ranks.
Needs: TensorFlow; Java 17 or newer; pip install 'tfperf[spark]'; Horovod (tfperf horovod install); real images
    (tfperf data fashion_mnist).
Time: about 2 minutes on 2 cores; with --quick about 1 minute.
Shows: train, train_as_rank
Try: --epochs 4: twice the images, and the same seconds before the first step and after the last.
"""

from tfperf.parallel.spark import enter_private_network

if __name__ == "__main__":
    enter_private_network()  # begins the program anew, so before TensorFlow, which takes seconds to load

import tempfile
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from tfperf import Benchmark, Flag, Recipe, TfperfError, get_net, load
from tfperf.data import NAMES
from tfperf.parallel.spark import (
    Notes,
    SparkCluster,
    Training,
    check_requirements,
    is_private,
    set_weights,
)

ONE = "one process"
RATE = 1e-3  # of Adam. All ranks together take the batch of one process, so the rate stays
CHECKED_STEPS = 8  # after which answers are compared: later, rounding has grown as all differences do in training
TOLERANCE = 1e-5  # relative, of the logits after those steps; ranks add gradients in another order
ACCURACY_TOLERANCE = 0.02  # after the training
DEADLINE = 240.0  # seconds of one training on Spark, which is cancelled then
QUICK_IMAGES = (4096, 1024)  # train, test


def train(flags) -> tuple:
    """In one process."""
    data = read(flags)
    net = build(data, flags)
    notes = Notes(net, CHECKED_STEPS)
    batches = pairs(data, flags).batch(flags.batch, drop_remainder=True).prefetch(2)
    net.fit(batches, epochs=flags.epochs, callbacks=[notes.callback()], verbose=0, shuffle=False)
    return notes.all()


def train_as_rank(flags) -> tuple:
    """The same as one of Horovod's ranks: four things change."""
    import tfperf.parallel.horovod as hvd

    hvd.init()  # 1. meet the other ranks
    data = read(flags)
    net = build(data, flags)
    hvd.DistributedOptimizer(net.optimizer)  # 2. average the gradients of all ranks
    notes = Notes(net, CHECKED_STEPS)
    share = hvd.shard(pairs(data, flags)).batch(flags.batch // hvd.size(), drop_remainder=True)  # 3. this rank's share
    callbacks = [*hvd.callbacks.default(), notes.callback()]  # 4. start equal, and see to it that ranks stay equal
    net.fit(share.prefetch(2), epochs=flags.epochs, callbacks=callbacks, verbose=0, shuffle=False)
    return notes.all()


def main(recipe: Recipe) -> None:
    """Train one CNN in one process and in two ways on Spark."""
    check_requirements()
    flags = recipe.flags
    flags.epochs = 1 if flags.quick else flags.epochs
    data = read(flags)
    most = len(data.train_images) // CHECKED_STEPS
    if flags.batch % flags.nodes or flags.batch > most:
        raise TfperfError(
            f"expected --batch to be a multiple of the {flags.nodes} nodes, and at most {most} of the "
            f"{len(data.train_images)} images. Received: --batch {flags.batch}"
        )
    recipe.uses(data)
    net, (images, labels) = build(data, flags), next(iter(pairs(data, flags).batch(flags.batch)))
    alone = Benchmark(f"one step, {ONE}", time_limit=flags.time_limit / 2)
    recipe.add(alone.measure(net.train_on_batch, images, labels))

    ways = {ONE: Training.ended_now(time.time(), [train(flags)])}
    start = time.time()
    with SparkCluster(flags.nodes) as cluster:
        recipe.fact("seconds to start Spark", started := time.time() - start)
        ways["Horovod on Spark"] = on_horovod(flags, cluster)
        if is_private() or flags.open_ports == "allow":
            ways["TensorFlowOnSpark"] = on_tensorflow_on_spark(flags, cluster)
        else:
            recipe.finds(
                "TensorFlowOnSpark was left out: its nodes are servers that listen on all interfaces and run what "
                "anybody sends, and this kernel allows no network of their own; --open-ports allow runs it anyway."
            )
    check_answers(recipe, data, ways)
    explain(recipe, ways, started)
    recipe.plot(lambda figure: draw(figure, recipe, ways))


def read(flags):
    """The data; every process reads it for itself, as every host of a cluster would."""
    data = load(flags.data)
    sizes = len(data.train_images), len(data.test_images)
    return data.take(*np.minimum(sizes, QUICK_IMAGES)) if flags.quick else data


def pairs(data, flags) -> tf.data.Dataset:
    """Images (height, width, channels) of 0 to 1 and their labels, in the same shuffled order everywhere."""
    whole = tf.data.Dataset.from_tensor_slices((data.train_images, data.train_labels)).cache()
    shuffled = whole.shuffle(len(data.train_images), seed=flags.seed)
    scaled = shuffled.map(lambda image, label: (tf.cast(image, tf.float32) / 255, label))
    options = tf.data.Options()
    options.autotune.enabled = False  # nothing here is tuned, and at its end `fit` would wait until the tuner wakes
    return scaled.with_options(options)


def build(data, flags) -> keras.Model:
    """The CNN, compiled; equal first weights everywhere."""
    net = get_net("mnist_cnn", num_classes=data.num_classes, input_shape=data.input_shape, seed=flags.seed)
    net.compile(keras.optimizers.Adam(RATE), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return net


def train_as_node(arguments, context) -> None:
    """The same as a node of TensorFlowOnSpark: in a loop of our own, as Keras 3's `fit` fails under this strategy."""
    flags, folder = arguments
    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # starts a server, and finds the others by TF_CONFIG
    data = read(flags)
    with strategy.scope():
        net = build(data, flags)
    notes = Notes(net, CHECKED_STEPS)

    def share(node: tf.distribute.InputContext) -> tf.data.Dataset:
        mine = pairs(data, flags).shard(node.num_input_pipelines, node.input_pipeline_id)
        return mine.batch(flags.batch // node.num_input_pipelines, drop_remainder=True).prefetch(2)

    def step_here(images, labels) -> None:
        with tf.GradientTape() as tape:
            loss = net.loss(labels, net(images, training=True))  # Keras has divided it by the number of nodes
        net.optimizer.apply(tape.gradient(loss, net.trainable_variables), net.trainable_variables)  # and adds these up

    step = tf.function(lambda images, labels: strategy.run(step_here, args=(images, labels)))
    batches = strategy.distribute_datasets_from_function(share)
    for _ in range(flags.epochs):
        for images, labels in batches:
            step(images, labels)
            notes.step()
    with Path(folder, f"{context.executor_id}.npz").open("wb") as file:
        np.savez(file, *notes.all())


def on_horovod(flags, cluster: SparkCluster) -> Training:
    """Horovod starts each rank in a task of Spark. `nics` keeps them on this machine; a real cluster does without."""
    import horovod.spark

    start = time.time()
    with cluster.job("Horovod on Spark", DEADLINE):
        ranks = horovod.spark.run(train_as_rank, (flags,), num_proc=flags.nodes, nics={"lo"}, use_gloo=True, verbose=0)
    return Training.ended_now(start, ranks)


def on_tensorflow_on_spark(flags, cluster: SparkCluster) -> Training:
    """TensorFlowOnSpark makes each executor a node. Nodes return nothing, so they write to a disk that all share."""
    from tensorflowonspark import TFCluster

    start = time.time()
    with cluster.job("TensorFlowOnSpark", DEADLINE), tempfile.TemporaryDirectory() as folder:
        arguments = flags, folder
        nodes = TFCluster.run(  # num_ps=0: no parameter servers, the nodes exchange gradients among themselves
            cluster.context, train_as_node, arguments, flags.nodes, num_ps=0, master_node="chief"
        )
        nodes.shutdown(timeout=-1)  # waits for the end of the training; the deadline is the job's
        ranks = [[*np.load(file).values()] for file in sorted(Path(folder).iterdir())]
    return Training.ended_now(start, ranks)


def check_answers(recipe: Recipe, data, ways: dict[str, Training]) -> None:
    """Weights equal on all ranks, bit by bit; logits as of one process, and in the end its accuracy. One net judges."""
    net = build(data, recipe.flags)
    images = data.test_images / np.float32(255)  # (n_test, height, width, channels)

    def logits_of(weights: np.ndarray) -> np.ndarray:
        set_weights(net, weights)
        return net.predict(images, batch_size=1024, verbose=0)  # (n_test, num_classes)

    accuracy, shares = {}, []
    for name, way in ways.items():
        odd = [rank for rank, weights in enumerate(way.final) if not np.array_equal(weights, way.final[0])]
        if odd:
            raise TfperfError(f"expected equal weights on all ranks of {name}, those of {odd} differ from rank 0's")
        recipe.fact(f"ranks with equal weights, {name}", len(way.final))
        if name != ONE:
            what = f"{name}, after {CHECKED_STEPS} steps,"
            recipe.agrees(what, logits_of(way.early), logits_of(ways[ONE].early), TOLERANCE)
        accuracy[name] = float(np.mean(logits_of(way.final[0]).argmax(axis=1) == data.test_labels))
        shares.append(f"{accuracy[name]:.1%} ({name})")
        recipe.fact(f"test accuracy, {name}", accuracy[name])
        if abs(accuracy[name] - accuracy[ONE]) > ACCURACY_TOLERANCE:
            raise TfperfError(f"expected a test accuracy near that of {ONE}, found {', '.join(shares)}")
    recipe.finds(f"Test accuracy: {', '.join(shares)}. The ranks of each way hold the same weights, bit by bit.")


def explain(recipe: Recipe, ways: dict[str, Training], started: float) -> None:
    """Say what moving to Spark costs, and what it does not give."""
    costs, speeds = [], []
    for name, way in ways.items():
        for phase, seconds in way.seconds.items():
            recipe.fact(f"seconds {phase}, {name}", seconds)
        recipe.fact(f"images/s, {name}", way.steps_per_second * recipe.flags.batch)
        speeds.append(f"{way.steps_per_second * recipe.flags.batch:,.0f} ({name})")
        before, _, after = way.seconds.values()
        costs.append(f"{before:.0f} and {after:.0f} s ({name})")
    recipe.finds(
        f"Spark starts in {started:.0f} s. From then on, up to the first step and after the last, a training costs "
        f"{', '.join(costs)}: train for longer than that."
    )
    recipe.finds(f"Images/s: {', '.join(speeds)}. All use the cores of one machine: what Spark can add is machines.")
    if "TensorFlowOnSpark" in ways:
        recipe.finds(
            "TensorFlowOnSpark starts the nodes and tells them of each other, no more: the program shares out the data "
            "and exchanges the gradients, here without parameter servers."
        )


def draw(figure, recipe: Recipe, ways: dict[str, Training]) -> None:
    """Draw where the seconds of each way go."""
    axes = figure.subplots()
    names = [*ways]
    left = np.zeros(len(names))
    for phase, colour in zip(ways[ONE].seconds, ("#a9cce3", "#2a6f97", "#d5d8dc"), strict=True):
        seconds = np.array([way.seconds[phase] for way in ways.values()])
        axes.barh(names, seconds, left=left, color=colour, label=phase)
        left += seconds
    for name, total in zip(names, left, strict=True):
        words = f"{total:.1f} s, {ways[name].steps_per_second * recipe.flags.batch:,.0f} images/s"
        axes.annotate(words, (total, name), (8, 0), textcoords="offset points", va="center")
    axes.set_xlim(0, left.max() * 1.35)  # room for the words
    axes.invert_yaxis()
    axes.set_xlabel("seconds from the call to its result; Spark itself runs already")
    flags = recipe.flags
    axes.set_title(f"Where the seconds go; epochs: {flags.epochs}, batch: {flags.batch}, ranks: {flags.nodes}")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=3)
    axes.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    Recipe(
        __file__,
        batch=256,
        epochs=Flag(2, "epochs to train"),
        nodes=Flag(2, "executors of Spark, each of them one rank"),
        data=Flag("fashion_mnist", "mnist, fashion_mnist or digits", choices=NAMES),
        open_ports=Flag("refuse", "TensorFlow's servers where they cannot be confined", choices=("refuse", "allow")),
    ).run(main)
