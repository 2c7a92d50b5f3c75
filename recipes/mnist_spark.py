"""How does the training move to the cluster the company has?

Source: 004, 2.5 什么是TensorFlow On Spark?
Claim: TensorFlowOnSpark runs TensorFlow programs on Spark's data parallelism: parameter servers hold the variables,
    the other nodes train on mini-batches, and the data is shared out by the model's performance. It names no figure.
Expect: one CNN trained in one process, by Horovod's ranks on Spark, and by TensorFlowOnSpark's nodes: equal logits,
    weights equal on all ranks, and what each way costs in seconds. Spark runs here, in a network of its own.
Holds not: for a training shorter than Spark takes to start its ranks.
Needs: TensorFlow; Java 17 or newer; pip install 'tfperf[spark]'; Horovod (tfperf horovod install); real images
    (tfperf data fashion_mnist).
Time: about 3 minutes on 2 cores; with --quick about 80 s.
Shows: train, train_as_rank, train_as_node
Try: --epochs 4: twice the images, and the same seconds before the first step and after the last.
"""

import time

import keras
import numpy as np
import tensorflow as tf

import tfperf.parallel.horovod as hvd
from tfperf import Flag, Recipe, TfperfError, get_net, load
from tfperf.parallel.spark import NodeFunction, Notes, SparkCluster, Training, check_requirements, in_private_network


def train(build, read, batch, epochs, callbacks=()):
    """Train in one process."""
    net = build()
    net.fit(read().batch(batch, drop_remainder=True), epochs=epochs, callbacks=callbacks, shuffle=False, verbose=0)
    return net


def train_as_rank(build, read, batch, epochs, callbacks=()):
    """Train as one of Horovod's ranks: four changes, and as all ranks together take the batch, the rate stays."""
    hvd.init()  # 1. meet the other ranks
    net = build()
    hvd.DistributedOptimizer(net.optimizer)  # 2. average the gradients of all ranks
    share = hvd.shard(read()).batch(batch // hvd.size(), drop_remainder=True)  # 3. take a share of the data
    callbacks = [*hvd.callbacks.default(), *callbacks]  # 4. start with equal weights, and keep them equal
    net.fit(share, epochs=epochs, callbacks=callbacks, shuffle=False, verbose=0)
    return net


def train_as_node(build, read, batch, epochs, callbacks=()):
    """Train as a node of TensorFlowOnSpark, in a loop of your own: under this strategy Keras 3's `fit` fails."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before any tensor: it meets the nodes of TF_CONFIG
    with strategy.scope():
        net = build()

    def step(images, labels):
        with tf.GradientTape() as tape:
            loss = net.loss(labels, net(images, training=True))  # Keras divides it by the number of nodes,
        net.optimizer.apply(tape.gradient(loss, net.trainable_variables), net.trainable_variables)  # and adds all up

    step_of_all = tf.function(lambda images, labels: strategy.run(step, args=(images, labels)))
    shares = strategy.experimental_distribute_dataset(read().batch(batch, drop_remainder=True))
    listeners = keras.callbacks.CallbackList(callbacks, model=net)
    for _ in range(epochs):
        for number, (images, labels) in enumerate(shares):
            step_of_all(images, labels)
            listeners.on_train_batch_end(number)
    return net


ONE, CHECKED_STEPS = "one process", 8  # logits are compared after so few steps: training amplifies rounding


def main(recipe: Recipe) -> None:
    """Train one CNN in one process and in two ways on Spark."""
    check_requirements()
    data, flags = recipe.load_data(), recipe.flags
    flags.images, flags.epochs = len(data.train_images), 1 if flags.quick else flags.epochs
    if flags.batch % flags.nodes or flags.batch * CHECKED_STEPS > flags.images:
        wanted = f"a multiple of {flags.nodes} nodes, and at most an eighth of {flags.images:,} images"
        raise TfperfError(f"expected --batch to be {wanted}. Received: --batch {flags.batch}")
    net, batch = build(flags), next(iter(read(flags).batch(flags.batch)))
    recipe.measure(f"one step, {ONE}", net.train_on_batch, *batch)
    ways = {ONE: Training.ended_now(time.time(), [run(train, flags)])}
    with recipe.console.status("Training on Spark"):
        seconds_to_start, ways_on_spark = in_private_network(train_on_spark, flags)
    judge(recipe, data, ways | ways_on_spark, seconds_to_start)
    if "TensorFlowOnSpark" not in ways_on_spark:
        recipe.finds(
            "TensorFlowOnSpark is left out: its nodes' servers listen on all interfaces and run what anybody sends, "
            "and this kernel allows no network of their own. A container started with --network none has one."
        )
    recipe.corrects(
        "Spark trains nothing. TensorFlowOnSpark, not maintained since 2023, starts TensorFlow's nodes in Spark's "
        "executors and tells them of each other. It balances no data by the model's performance: nodes are fed Spark's "
        "partitions, or read for themselves, as here. Parameter servers are an option, num_ps; without them the nodes "
        "exchange gradients, as Horovod's ranks always do."
    )
    recipe.plot(draw, ways | ways_on_spark)


def train_on_spark(flags) -> tuple[float, dict[str, Training]]:
    """Start Spark and train on it in both ways; returns the seconds that its start took, and name -> training."""
    ways = {}
    with SparkCluster(flags.nodes) as cluster:
        import horovod.spark
        from tensorflowonspark import TFCluster

        with cluster.job("Horovod on Spark") as start:
            options = {"num_proc": flags.nodes, "use_gloo": True, "nics": {"lo"}}  # lo: all ranks are on this machine
            ranks = horovod.spark.run(run, (train_as_rank, flags), verbose=0, **options)
            ways["Horovod on Spark"] = Training.ended_now(start, ranks)
        if cluster.is_private:
            with cluster.job("TensorFlowOnSpark") as start, NodeFunction(run) as node:
                options = {"num_executors": flags.nodes, "num_ps": 0, "master_node": "chief"}
                TFCluster.run(cluster.context, node, (train_as_node, flags), **options).shutdown(timeout=-1)
                ways["TensorFlowOnSpark"] = Training.ended_now(start, node.results())
        return cluster.seconds_to_start, ways


def run(way, flags) -> tuple:
    """Train in this process in one of the ways, and bring home when each step ended, and the weights."""
    notes = Notes(CHECKED_STEPS)
    way(lambda: build(flags), lambda: read(flags), flags.batch, flags.epochs, [notes.callback()])
    return notes.all()


def build(flags) -> keras.Model:
    """Build and compile the CNN, with equal first weights everywhere."""
    net = get_net("mnist_cnn", seed=flags.seed)
    net.compile(keras.optimizers.Adam(1e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return net


def read(flags) -> tf.data.Dataset:
    """Read images and labels, shuffled alike everywhere; each process reads for itself, as each host would."""
    data, options = load("fashion_mnist").take(flags.images, 1), tf.data.Options()
    options.autotune.enabled = False  # nothing here is tuned, and `fit` would wait at its end until the tuner wakes
    pairs = tf.data.Dataset.from_tensor_slices((data.train_images / np.float32(255), data.train_labels))
    return pairs.shuffle(flags.images, seed=flags.seed).with_options(options)


def judge(recipe: Recipe, data, ways: dict[str, Training], seconds_to_start: float) -> None:
    """Check that each way gives what one process gives, and say what it costs."""
    net, images = build(recipe.flags), data.test_images / np.float32(255)

    def logits_of(weights) -> np.ndarray:
        net.set_weights(weights)
        return net.predict(images, batch_size=1024, verbose=0)  # (n_test, num_classes)

    right = {name: float(np.mean(logits_of(way.final).argmax(1) == data.test_labels)) for name, way in ways.items()}
    for name in list(ways)[1:]:
        early, expected = logits_of(ways[name].early), logits_of(ways[ONE].early)
        recipe.agrees(f"{name}, logits after {CHECKED_STEPS} steps,", early, expected)
        recipe.agrees(f"{name}, test accuracy,", right[name], right[ONE], 0.025)
    for name, way in ways.items():
        figures = way.figures(recipe.flags.batch) | {"test accuracy": right[name]}
        for what, figure in figures.items():
            recipe.fact(f"{what}, {name}", figure)
        recipe.finds(
            f"{name}: {right[name]:.1%} of the test images are right, at {figures['images/s']:,.0f} images/s. "
            f"{way.overhead:.0f} s pass before the first step and after the last."
        )
    recipe.fact("seconds to start Spark", seconds_to_start)
    recipe.finds(
        f"Spark itself starts in {seconds_to_start:.0f} s. All ranks of a way end with equal weights, bit by bit. Here "
        "they share the cores that one process had: Spark pays for long trainings, on more machines."
    )


def draw(figure, ways: dict[str, Training]) -> None:
    """Draw where the seconds of each way go."""
    axes, left = figure.subplots(), np.zeros(len(ways))
    for phase in ways[ONE].seconds:
        seconds = np.array([way.seconds[phase] for way in ways.values()])
        axes.barh(list(ways), seconds, left=left, label=phase)
        left += seconds
    axes.invert_yaxis()
    axes.set(xlabel="seconds from the call to its result, when Spark itself runs", title="Where the seconds go")
    axes.legend()


if __name__ == "__main__":
    nodes = Flag(2, "executors of Spark, each of them one rank")
    Recipe(__file__, batch=256, epochs=Flag(2, "epochs to train"), nodes=nodes).run(main)
