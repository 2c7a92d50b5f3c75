"""Where is a parameter server's bottleneck?

Source: 001, 12.7.1. 数据并行训练 and 12.7.3. 多机训练; 002, 6.2.3.4 总结
Claim: one server is the bottleneck; n servers with 1/n of the parameters each remove it. The same synchronisation takes
    15 to 80 ms, because buses differ. More complex ways are asynchronous.
Expect: LeNet on TensorFlow's own servers over gRPC; the time of a step follows the bytes of the fullest server.
Holds not: where the workers' arithmetic takes longer than the servers' links; without root's rights no link is limited.
Needs: TensorFlow; real images (tfperf data fashion_mnist); a Linux that allows private networks.
Time: about 40 s on 2 cores; with --quick about 30 s, on fewer images.
Shows: place, gradient_step, apply_sums, train
Try:
    - --megabytes 5: nearly all of a step is the link of the fullest server, so equal parts gain more.
    - --servers 4: equal parts halve what the fullest server holds; whole tensors do not, as the largest stays on one.
"""

import time
from functools import partial

import keras
import numpy as np
import tensorflow as tf

from tfperf import Flag, Recipe, get_net
from tfperf.data import training_batches
from tfperf.parallel import LocalCluster, can_limit_links, in_private_network


def place(tensors, servers, split):
    """Put tensors on parameter servers: whole, each where fewest weights are, or in equal parts on all of them."""
    placed, full = [], [0] * servers
    for tensor in tensors:
        placed.append([])  # its parts, flat variables
        on = range(servers) if split else [full.index(min(full))]
        for server, part in zip(on, np.array_split(np.ravel(tensor), len(on)), strict=True):
            full[server] += part.size
            with tf.device(f"/job:ps/task:{server}"):
                placed[-1].append(tf.Variable(part))
    return placed


def gradient_step(net, weights, targets, rate, images, labels):
    """Fetch the weights from the servers, and add the step that a share of the batch asks for to the targets there."""
    values = [tf.reshape(tf.concat(parts, 0), own.shape) for parts, own in zip(weights, net.weights, strict=True)]
    with tf.GradientTape() as tape:
        tape.watch(values)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, net.stateless_call(values, [], images)[0])
    for parts, gradient in zip(targets, tape.gradient(losses, values), strict=True):  # of their sum
        pieces = tf.split(-rate * tf.reshape(gradient, [-1]), [part.shape[0] for part in parts])
        for part, piece in zip(parts, pieces, strict=True):
            part.assign_add(piece)


def apply_sums(weights, sums):
    """Let each server change its weights by what all workers have added up there: nothing passes a link."""
    for part, total in zip(tf.nest.flatten(weights), tf.nest.flatten(sums), strict=True):
        with tf.device(part.device):
            part.assign_add(total)
            total.assign(tf.zeros_like(total))


def train(coordinator, step, batches, update=None):
    """Wait for all shares of a batch before the update, as one device would; without an update wait for nobody."""
    for shares in batches:
        for share in shares:
            coordinator.schedule(step, args=share)  # on whichever worker is free
        if update:
            coordinator.join()
            update()
    coordinator.join()


RATE, STEPS, WARM_UP, WORKERS = 0.01, 20, 2, 2  # at a rate of 0.1 this net amplifies rounding from step to step
ONE, WHOLE, EQUAL, FREE = "1 server", "servers, whole tensors", "servers, equal parts", "servers, asynchronous"


def main(recipe: Recipe) -> None:
    """Train LeNet on one device, then on servers behind slow links: one, several, whole tensors, equal parts."""
    flags, net = recipe.flags, get_net("lenet", seed=recipe.flags.seed)
    batches = training_batches(recipe.load_data(), flags.batch, seed=flags.seed).repeat().take(STEPS)
    batches, first = list(batches.as_numpy_iterator()), net.get_weights()
    net.compile(keras.optimizers.SGD(RATE), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    for batch in batches:
        net.train_on_batch(*batch)
    start, alone = (np.concatenate([np.ravel(value) for value in values]) for values in (first, net.get_weights()))
    recipe.measure("one step, one device", net.train_on_batch, *batches[0])
    bandwidth = flags.megabytes * 1e6 if can_limit_links() else None
    with recipe.console.status("Training on TensorFlow's servers, in a network of their own"):
        weights, ms, held, counted = in_private_network(train_in_all_ways, first, batches, flags.servers, bandwidth)
    link = {name: 1000 * 2 * WORKERS * size / (bandwidth or np.inf) for name, size in held.items()}  # there and back
    for name in ms:
        if name != FREE:
            recipe.agrees(f"{name}, weights after {STEPS} steps,", weights[name], alone)
        recipe.fact(f"ms a step, {name}", ms[name])
        recipe.fact(f"bytes on the fullest server, {name}", held[name])
    rows = [[name, *(f"{x:.0f}" for x in (ms[name], link[name], held[name] / 1e3, counted[name] / 1e3))] for name in ms]
    recipe.table(["way", "ms a step", "link's ms", "KB held", "KB counted"], rows)
    distance = float(np.linalg.norm(weights[FREE] - alone) / np.linalg.norm(alone - start))
    recipe.fact("distance of the asynchronous change from one device's, relative", distance)
    links = f"Links of {flags.megabytes} MB/s" if bandwidth else "Links without a limit, which needs root"
    recipe.finds(
        f"{links}: a step takes {ms[ONE]:.0f} ms with one server, {ms[WHOLE]:.0f} with whole tensors on several, "
        f"{ms[EQUAL]:.0f} with equal parts. The largest tensor's server holds {held[WHOLE] / held[ONE]:.0%} of LeNet."
    )
    recipe.finds(
        f"Asynchronous: {ms[FREE]:.0f} ms for as many images. A gradient may be that of weights that others have "
        f"changed since they were fetched: the weights end {distance:.0%} of their change away from one device's."
    )
    recipe.corrects(
        "The 15 to 80 ms are strategies, not different buses. 160 MB from four GPUs, at 16 GB/s there and back, take "
        f"{2 * 4 * 160 / 16:.0f} ms if the CPU sums four, {2 * 3 * 160 / 16:.0f} ms if one GPU sums three others', and "
        f"{2 * 3 * 160 / 4 / 16:.0f} ms if each GPU sums a quarter: equal parts again, with workers that are servers."
    )
    recipe.corrects("Servers now hold embeddings, not dense nets. Keras 3 does not support them, but tf.Variable does.")
    recipe.plot(draw, ms, link)


def train_in_all_ways(first, batches, servers: int, bandwidth: float | None) -> tuple[dict, dict, dict, dict]:
    """Give for each way the last weights, ms a step, and bytes: on the fullest server, and one way over its link."""
    shares = [[(x[worker::WORKERS], y[worker::WORKERS]) for worker in range(WORKERS)] for x, y in batches]
    ways = {ONE: (1, False), WHOLE: (servers, False), EQUAL: (servers, True), FREE: (servers, True)}
    net, rate, weights, ms, held, counted = get_net("lenet"), RATE / len(batches[0][0]), {}, {}, {}, {}
    with LocalCluster(WORKERS, servers, bandwidth=bandwidth) as cluster:
        strategy = tf.distribute.ParameterServerStrategy(cluster.resolver)
        coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        for name, where in ways.items():
            placed, sums = place(first, *where), place([0 * value for value in first], *where)
            step = tf.function(partial(gradient_step, net, placed, placed if name == FREE else sums, rate))
            update = None if name == FREE else tf.function(partial(apply_sums, placed, sums))
            train(coordinator, step, shares[:WARM_UP], update)
            before, begin = cluster.traffic(), time.perf_counter()
            train(coordinator, step, shares[WARM_UP:], update)
            ms[name] = 1000 * (time.perf_counter() - begin) / (STEPS - WARM_UP)
            counted[name] = np.subtract(cluster.traffic(), before).max(initial=0) / (STEPS - WARM_UP)
            weights[name], held[name] = np.concatenate(tf.nest.flatten(placed)), max(cluster.bytes_held(placed))
            del step, update  # TensorFlow forgets them on the servers, too, which must live for that
    return weights, ms, held, counted


def draw(figure, ms: dict[str, float], link: dict[str, float]) -> None:
    """Draw the time of a step in each way, beside what the fullest server's link takes."""
    axes = figure.subplots()
    axes.barh(list(ms), list(ms.values()))
    axes.plot(list(link.values()), list(link), "k|", ms=30)
    axes.invert_yaxis()
    axes.set(xlabel="ms a step; black: what the link alone takes", title="LeNet on parameter servers")


if __name__ == "__main__":
    servers, megabytes = Flag(2, "parameter servers"), Flag(20, "MB/s of each server's link in each direction")
    Recipe(__file__, batch=128, servers=servers, megabytes=megabytes).run(main)
