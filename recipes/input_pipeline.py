"""Is the model waiting for data?

Source: 002, 6.2.3.2 代码实践
Claim: training on large data needs efficient reading and preprocessing. The source names no figure.
Expect: the same PNG files read in eight ways, from a Python generator to a tf.data pipeline that is cached and
    prefetched; reading alone, a training step alone, and both together, which take their sum where one waits for the
    other, and at best the longer of the two.
Holds not: where the step is longer than reading: then cheaper reading buys nothing more.
Needs: TensorFlow; real images (tfperf data fashion_mnist); 2 cores, one to read and one to compute; no GPU.
Time: 2 to 3 minutes on 2 cores; with --quick about 20 s.
Shows: decode, scale, pipelines
Try: --batch 32: a batch is read in an eighth of the time, and so is a step; the share that is hidden stays.
"""

import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import keras
import numpy as np
import tensorflow as tf

from tfperf import Recipe, TfperfError, compare, get_net, load
from tfperf.cores import usable_cores

FILES, QUICK_FILES = 4096, 512  # written just before, and still in memory: no disk is waited for
READERS = max(1, usable_cores() - 1)  # threads that read; the step has one core to itself
WARM_UP, BATCHES, QUICK_BATCHES = 2, 4, 2  # batches that fill what a pipeline holds ready, and those that are timed
TRIES, QUICK_TRIES = 9, 1  # of all pipelines in turns: what slows the machine slows all
NAIVE, TUNED = "generator", "cache, prefetch"
GOAL = 0.95  # share of the longer of reading and step, in the time of both
TOLERANCE = 1e-6  # relative, of the images


def decode(path, label):
    """A file as an image (28, 28, 1) of 0 to 255, and its label."""
    return tf.io.decode_png(tf.io.read_file(path), channels=1), label


def scale(images, labels):
    """Images of 0 to 1, one or a batch, and their labels."""
    return tf.cast(images, tf.float32) / 255, labels


def pipelines(paths: list[str], labels, batch: int) -> dict[str, tf.data.Dataset]:
    """Eight ways to the same batches: images (batch, height, width, channels), labels (batch,)."""

    def one_by_one():
        while True:
            for path, label in zip(paths, labels, strict=True):
                yield scale(*decode(path, label))

    def batched(examples):
        return examples.batch(batch, drop_remainder=True)

    signature = tf.TensorSpec([28, 28, 1], tf.float32), tf.TensorSpec([], tf.int64)
    files = tf.data.Dataset.from_tensor_slices((paths, labels))
    endless = files.repeat()
    ways = {
        "generator": batched(tf.data.Dataset.from_generator(one_by_one, output_signature=signature)),
        "map": batched(endless.map(lambda path, label: scale(*decode(path, label)))),
        "parallel map": batched(
            endless.map(lambda path, label: scale(*decode(path, label)), num_parallel_calls=READERS)
        ),
        "batch before map": batched(endless.map(decode, num_parallel_calls=READERS)).map(scale),
        "cache": batched(files.map(decode, num_parallel_calls=READERS).cache().repeat()).map(scale),
    }
    ways |= {f"{name}, prefetch": ways[name].prefetch(2) for name in ("generator", "batch before map", "cache")}
    options = tf.data.Options()
    options.threading.private_threadpool_size = READERS
    options.threading.max_intra_op_parallelism = 1
    options.autotune.enabled = False  # each way is to stay as it is written
    return {name: way.with_options(options) for name, way in ways.items()}


def seconds_of(way: tf.data.Dataset, timed: int, step=None) -> float:
    """Seconds a batch, of reading it and, if there is one, the step. The pipeline ends with this function."""
    batches = iter(way)
    for count in (WARM_UP, timed):
        start = time.perf_counter()
        for _ in range(count):
            images, labels = next(batches)
            if step is not None:
                step(images, labels)
    return (time.perf_counter() - start) / timed


def main(recipe: Recipe) -> None:
    """Measure reading alone, the step alone and both together, for each pipeline."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    files, batch = QUICK_FILES if recipe.flags.quick else FILES, recipe.flags.batch
    data = load("fashion_mnist").take(files, 1)
    recipe.uses(data)
    if batch > files:
        raise TfperfError(f"expected --batch of at most {files}, which are the files. Received: --batch {batch}")
    net = get_net("mnist_cnn", seed=recipe.flags.seed)
    net.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with TemporaryDirectory() as place:
        paths = [str(Path(place) / f"{index}.png") for index in range(files)]
        for path, image in zip(paths, data.train_images, strict=True):
            tf.io.write_file(path, tf.io.encode_png(image))
        ways = pipelines(paths, data.train_labels, batch)
        recipe.console.print("\nDo all give the same images?")
        first = scale(data.train_images[:batch], data.train_labels[:batch])
        for name, way in ways.items():
            recipe.agrees(name, next(iter(way)), first, TOLERANCE)
        for _ in ways["cache"].take(files // batch + 1):
            pass  # the first pass fills the cache
        epochs = {name: partial(epoch, ways[name].take(files // batch), net) for name in (NAIVE, TUNED)}
        with recipe.progress(f"all {files} images, side by side") as show:
            comparison = compare(epochs, time_limit=recipe.flags.time_limit, seed=recipe.flags.seed, on_progress=show)
        recipe.add(comparison)
        ratio = comparison.ratio(NAIVE, TUNED)
        recipe.finds(
            f"{TUNED}: {ratio.estimate:.1f} times as fast as the generator [{ratio.low:.1f}, {ratio.high:.1f}]: "
            "reading became cheaper, and goes on while the step computes. Behind a longer step, cheaper reading buys "
            "nothing more."
        )
        ready = tf.data.Dataset.from_tensors(first).repeat()
        times = check_model(recipe, ways, ready, net.train_on_batch)
    recipe.plot(lambda figure: draw(figure, times))


def check_model(recipe: Recipe, ways: dict, ready: tf.data.Dataset, step) -> dict:
    """Measure reading, the step and both in turns; name -> milliseconds of the three."""
    tries: dict[str, list] = {name: [] for name in ways}
    most, timed = (QUICK_TRIES, QUICK_BATCHES) if recipe.flags.quick else (TRIES, BATCHES)
    for _ in range(most):
        for name, way in ways.items():  # the three one after the other: this machine's speed may change with time
            alone = seconds_of(ready, timed, step)
            tries[name].append((seconds_of(way, timed), alone, seconds_of(way, timed, step)))
    found = {}
    for name, times in tries.items():
        read, alone, both = np.transpose(times)
        reached = float(np.median(np.maximum(read, alone) / both))
        hidden = float(np.clip(np.median((read + alone - both) / np.minimum(read, alone)), 0, 1))
        recipe.fact(f"max(read, step) by the time of both: {name}", reached)
        recipe.fact(f"share of the shorter that is hidden: {name}", hidden)
        found[name] = np.median(np.transpose(times), axis=1) * 1e3
        read, alone, both = found[name]
        recipe.finds(
            f"{name}: {read:.1f} ms to read a batch, {alone:.1f} for the step, {both:.1f} for both: {hidden:.0%} of "
            f"the shorter is hidden, and {reached:.0%} of max(read, step) reached."
        )
    if reached < GOAL:  # of the last, which is tuned
        recipe.finds(f"Under {GOAL:.0%}: what else runs on these {usable_cores()} cores takes from reading or step.")
    return found


def epoch(way: tf.data.Dataset, net: keras.Model) -> None:
    """Train on all of it once."""
    for images, labels in way:
        net.train_on_batch(images, labels)


def draw(figure, times: dict) -> None:
    """Draw for each way reading and step one after the other, both together, and the longer of the two."""
    axes = figure.subplots()
    read, step, both = np.transpose(list(times.values()))
    rows = np.arange(len(times))
    axes.barh(rows - 0.2, read, 0.35, color="tab:orange", label="read alone")
    axes.barh(rows - 0.2, step, 0.35, left=read, color="tab:green", label="step alone")
    axes.barh(rows + 0.2, both, 0.35, color="tab:blue", label="together")
    axes.vlines(np.maximum(read, step), rows - 0.4, rows + 0.4, color="black", label="max(read, step)")
    axes.set_yticks(rows, times)
    axes.invert_yaxis()
    axes.set_xlabel("ms a batch")
    axes.set_title("Reading, computing, and both", loc="left")
    axes.legend()


if __name__ == "__main__":
    Recipe(__file__, batch=256).run(main)
