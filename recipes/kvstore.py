"""What do push and pull buy?

Source: 001, 12.7.4. 键值存储
Claim: gradients are a commutative reduction: the order of a sum does not matter. Two calls, push(key, value) and
    pull(key, value), separate the modeller's concern from the systems engineer's. It names no figure.
Expect: two workers and TensorFlow's servers train LeNet to one device's weights; a sum's bits follow its order.
Holds not: where every worker needs every sum in every step: an allreduce then has no server to be slow.
Needs: TensorFlow; real images (tfperf data fashion_mnist); a Linux that allows private networks.
Time: about 40 s on 2 cores; with --quick about 30 s, on fewer images.
Shows: place, push, pull, train_step
Try:
    - --servers 3: no line of train_step changes, and each server holds a third of the bytes of split values.
    - --batch 256: a step takes less than twice as long, as no more weights and gradients than before pass the servers.
"""

import itertools
import time
from functools import partial

import numpy as np
import tensorflow as tf

from tfperf import Flag, Recipe, get_net
from tfperf.data import training_batches
from tfperf.parallel import KeyValueStore, LocalCluster, in_private_network


def place(values, servers):
    """Put each key's value on the parameter server whose turn it is; nobody else needs to know which."""
    store = {}
    for turn, (key, value) in enumerate(values.items()):
        with tf.device(f"/job:ps/task:{turn % servers}"):
            store[key] = tf.Variable(value)
    return store


def push(store, key, value):
    """Add a worker's value to a key's, on the server that holds it, whoever else pushes meanwhile."""
    store[key].assign_add(value)


def pull(store, key):
    """Fetch what all pushes have made of a key's value."""
    return store[key].read_value()


def train_step(push, pull, keys, gradients_of, images, labels, rate):
    """Take one step on a worker's share of a batch; no line says how many workers or servers there are."""
    weights = [pull(key) for key in keys]
    for key, gradient in zip(keys, gradients_of(weights, images, labels), strict=True):
        push(key, -rate * gradient)


ONE, WHOLE, SPLIT, FREE = "one device", "whole values", "split values", "asynchronous"
RATE, STEPS, WORKERS = 0.01, 20, 2  # at a rate of 0.1 this net amplifies rounding from step to step


def main(recipe: Recipe) -> None:
    """Train LeNet on one device and through the store in three ways, then sum the same arrays in all orders."""
    flags, net = recipe.flags, get_net("lenet", seed=recipe.flags.seed)
    batches = training_batches(recipe.load_data(), flags.batch, seed=flags.seed).repeat().take(STEPS)
    batches, first = list(batches.as_numpy_iterator()), [tf.constant(value) for value in net.get_weights()]
    recipe.measure("gradients, one device", tf.function(partial(gradients_of_lenet, net, first)), *batches[0])
    with recipe.console.status("Training on TensorFlow's servers, in a network of their own"):
        weights, ms, held, sums = in_private_network(train_in_all_ways, batches, flags.servers, flags.seed)
    for name in (WHOLE, SPLIT):
        recipe.agrees(f"{name}, weights after {STEPS} steps,", weights[name][0], weights[ONE][0])
        recipe.agrees(f"{name}, these weights as the other worker pulled them,", *weights[name], 0.0)
        recipe.fact(f"bytes on the fullest server, {name}", max(held[name]))
    rows = [[name, f"{ms[name]:.1f}", ", ".join(f"{size:,}" for size in held[name])] for name in ms]
    recipe.table(["way", "ms a step", "bytes on each server"], rows)
    for name in ms:
        recipe.fact(f"ms a step, {name}", ms[name])
    change = weights[ONE][0] - np.concatenate([np.ravel(value) for value in first])
    distance = float(np.linalg.norm(weights[FREE][0] - weights[ONE][0]) / np.linalg.norm(change))
    spread = np.ptp(sums, axis=0)
    recipe.fact("distance of the asynchronous change from one device's, relative", distance)
    recipe.fact("share of sums whose bits follow the order", float(np.mean(spread > 0)))
    recipe.finds(
        f"The same train_step trains on one device and on {WORKERS} workers. Where a pull waits for all pushes, they "
        "make the weights of one device, whichever servers hold these. All pull one sum, so their copies stay equal. "
        f"Where it does not wait, the change in {STEPS} steps is {distance:.0%} away from one device's."
    )
    recipe.finds(
        f"A step takes {ms[ONE]:.1f} ms on one device, and {ms[WHOLE]:.1f} ms through the store, whose workers and "
        "servers share the same cores. On one machine the two calls buy a simple program, and no speed."
    )
    recipe.corrects(
        f"The order of a sum matters to its last bits: of 1,000 sums of four numbers, {np.mean(spread > 0):.0%} are "
        f"not the same in all {len(sums)} orders; they differ by up to {spread.max():.0e}."
    )
    recipe.corrects("MXNet, whose KVStore had these calls, was retired in 2023. Such stores now hold embedding tables.")
    recipe.plot(draw, ms)


def train_in_all_ways(batches: list, servers: int, seed: int) -> tuple[dict, dict, dict, list]:
    """Give for each way the weights that each worker pulled, ms a step, and bytes on each server; then the sums."""
    net = get_net("lenet", seed=seed)
    first = {weight.path: weight.numpy() for weight in net.trainable_variables}
    local = {key: tf.Variable(value) for key, value in first.items()}
    alone, ms_alone = train(net, partial(push, local), partial(pull, local), first, batches)
    weights, ms, held = {ONE: [alone]}, {ONE: ms_alone}, {ONE: []}
    with LocalCluster(WORKERS, servers) as cluster:
        for name, options in {WHOLE: {}, SPLIT: {"split": True}, FREE: {"synchronous": False}}.items():
            store = KeyValueStore(cluster, **options)
            for key, value in first.items():
                store.create(key, value)
            work = partial(train, net, store.push, store.pull, first, batches, WORKERS)
            weights[name], times = zip(*store.run(work), strict=True)
            ms[name], held[name] = max(times), store.bytes_held()
        return weights, ms, held, sum_in_all_orders(servers, seed)


def train(net, push, pull, keys, batches: list, workers: int = 1, worker: int = 0) -> tuple[np.ndarray, float]:
    """Train as one of the workers; returns the weights at the end, and the ms of a step."""
    gradients_of, times = tf.function(partial(gradients_of_lenet, net)), [time.perf_counter()]
    for images, labels in batches:
        train_step(push, pull, keys, gradients_of, images[worker::workers], labels[worker::workers], RATE / len(images))
        times.append(time.perf_counter())
    return np.concatenate([np.ravel(pull(key)) for key in keys]), float(1000 * np.median(np.diff(times)[2:]))


def gradients_of_lenet(net, weights, images, labels) -> list:
    """Give the gradients of the sum of the losses."""
    with tf.GradientTape() as tape:
        tape.watch(weights)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, net.stateless_call(weights, [], images)[0])
    return tape.gradient(losses, weights)


def sum_in_all_orders(servers: int, seed: int) -> list[np.ndarray]:
    """Push the same four arrays in all orders, and pull each sum."""
    arrays = np.random.default_rng(seed).normal(size=(4, 1000)).astype("float32")
    store = place(dict.fromkeys(itertools.permutations(range(len(arrays))), 0 * arrays[0]), servers)
    for order in store:
        for number in order:
            push(store, order, arrays[number])
    return [pull(store, order).numpy() for order in store]


def draw(figure, ms: dict[str, float]) -> None:
    """Draw the time of a step in each way."""
    axes = figure.subplots()
    axes.barh(list(ms), list(ms.values()))
    axes.invert_yaxis()
    axes.set(xlabel="ms a step; all share the cores of one machine", title="LeNet through push and pull")


if __name__ == "__main__":
    Recipe(__file__, batch=128, servers=Flag(2, "parameter servers that hold the values")).run(main)
