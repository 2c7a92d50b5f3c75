"""Is the model waiting for data?

Source: 002, 6.2.3.2 代码实践
Claim: training on large data needs efficient reading and preprocessing. The source names no figure.
Expect: eight pipelines, from a generator to all changes; read, step and both against max(read, step).
Holds not: where the step is longer than reading: once prefetch hides it, cheaper reading buys nothing more.
Needs: TensorFlow; real images (tfperf data fashion_mnist); 2 cores, one to read and one to compute; no GPU.
Time: about 3 minutes on 2 cores; with --quick about 35 s.
Shows: decode, scale, naive, tuned, one_change_at_a_time
Try: --batch 32: a batch is read in an eighth of the time, but a step takes more than that: each has work of its own.
"""

from functools import partial
from tempfile import TemporaryDirectory

import keras
import numpy as np
import tensorflow as tf

from tfperf import Recipe, TfperfError, get_net, load
from tfperf.data import sorted_examples, write_records
from tfperf.hardware import usable_cores


def decode(record):
    """Turn a record into an image (28, 28, 1) of 0 to 255 and its label: costly, and the same in every epoch."""
    features = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}
    example = tf.io.parse_single_example(record, features)
    return tf.reshape(tf.io.decode_png(example["image"]), [28, 28, 1]), example["label"]


def scale(images, labels):
    """Scale to 0 to 1, one image or a whole batch: a batch takes one call."""
    return tf.cast(images, tf.float32) / 255, labels


def naive(files, batch):
    """Read with a Python generator, as many programs do: Python handles every image while the model waits."""

    def examples():
        for record in tf.data.TFRecordDataset(files):
            yield scale(*decode(record))

    signature = tf.TensorSpec([28, 28, 1], tf.float32), tf.TensorSpec([], tf.int64)
    return tf.data.Dataset.from_generator(examples, output_signature=signature).batch(batch)


def tuned(files, batch, threads):
    """Decode in parallel, decode once, and prepare the next batch while the model computes."""
    options = tf.data.Options()
    options.threading.private_threadpool_size = threads  # leave the other cores to the model
    options.autotune.enabled = False  # AUTOTUNE is then `threads`; left on, the tuner made a program end 9 s late
    dataset = tf.data.Dataset.from_tensor_slices(files)
    dataset = dataset.interleave(tf.data.TFRecordDataset, num_parallel_calls=tf.data.AUTOTUNE)
    dataset = dataset.map(decode, num_parallel_calls=tf.data.AUTOTUNE)
    dataset = dataset.cache()  # what is costly and always the same; scaled to float32 it would take 4 times the memory
    dataset = dataset.shuffle(10_000)  # after the cache, which would repeat the first epoch's order
    dataset = dataset.batch(batch).map(scale)
    return dataset.prefetch(tf.data.AUTOTUNE).with_options(options)  # prefetch is last: it makes whole batches ready


def one_change_at_a_time(files, batch, threads):
    """Go from naive to tuned in steps, and measure what each change buys: it depends on your data and machine."""
    auto, best = tf.data.AUTOTUNE, tuned(files, batch, threads)
    plain = tf.data.Options()
    plain.experimental_optimization.apply_default_optimizations = False  # else TensorFlow prefetches by itself
    in_turn = tf.data.TFRecordDataset(files)
    at_once = tf.data.Dataset.from_tensor_slices(files).interleave(tf.data.TFRecordDataset, num_parallel_calls=auto)
    decoded = at_once.map(decode, num_parallel_calls=auto)
    steps = {
        "generator": naive(files, batch),
        "generator, prefetch": naive(files, batch).prefetch(auto),  # little: the step needs Python, too
        "map": in_turn.map(decode).map(scale).batch(batch),  # Python sees whole batches only
        "parallel map": in_turn.map(decode, num_parallel_calls=auto).map(scale).batch(batch),  # on all `threads`
        "interleave": decoded.map(scale).batch(batch),  # several files at once: pays where a read is slow to begin
        "batch before map": decoded.batch(batch).map(scale),  # one call for a batch
        "prefetch": decoded.batch(batch).map(scale).prefetch(auto),  # reading hides behind the step
        "cache": best,  # and is done once
    }
    return {name: step.with_options(best.options()).with_options(plain) for name, step in steps.items()}


def main(recipe: Recipe) -> None:
    """Measure reading alone, the step alone and both together, for each pipeline; the files stay in memory."""
    tf.config.threading.set_intra_op_parallelism_threads(1)  # one core for the step, the others for reading
    tf.config.threading.set_inter_op_parallelism_threads(1)
    data, batch = load("fashion_mnist"), recipe.flags.batch
    if batch > len(data.train_images):
        raise TfperfError(f"expected --batch to be at most {len(data.train_images)}. Received: --batch {batch}")
    batches = max(1, (1024 if recipe.flags.quick else 4096) // batch)  # of an epoch
    data = data.take(batches * batch, 1)
    recipe.uses(data)
    net = get_net("mnist_cnn", seed=recipe.flags.seed)
    net.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    images, labels = scale(data.train_images, data.train_labels)
    with TemporaryDirectory() as folder:
        pipelines = one_change_at_a_time(write_records(data, folder), batch, max(1, usable_cores() - 1))
        for name, pipeline in pipelines.items():  # the first epoch, which fills the cache
            recipe.agrees(name, sorted_examples(pipeline), sorted_examples([(images, labels)]), 1e-6)
        ready = tf.data.Dataset.from_tensors((images[:batch], labels[:batch])).repeat()
        times, step = {}, net.train_on_batch
        for name, pipeline in pipelines.items():  # three at a time: the machine's speed may change meanwhile
            count = min(2, batches) if "generator" in name else batches  # so slow that two will do
            three = ("step", ready, step), ("read", pipeline, lambda *_: None), ("both", pipeline, step)
            epochs = {f"{name}: {what}": partial(epoch, feed.take(count), work) for what, feed, work in three}
            comparison = recipe.compare(epochs, tolerance=None, what=f"{name}, epochs of {count} batches")
            times[name] = [measurement.median / count * 1e3 for measurement in comparison.measurements]
    explain(recipe, times)
    recipe.plot(draw, times)


def epoch(pipeline, step) -> None:
    """Read all batches, and take a step with each."""
    for images, labels in pipeline:
        step(images, labels)


def explain(recipe: Recipe, times: dict) -> None:
    """Say what the changes buy, from name -> milliseconds a batch of the step, of reading and of both."""
    hidden, rows = {}, []
    for name, (step, read, both) in times.items():
        reached = max(read, step) / both
        recipe.fact(f"max(read, step) by the time of both: {name}", reached)
        hidden[name] = float(np.clip((read + step - both) / min(read, step), 0, 1))
        recipe.fact(f"share of the shorter that is hidden: {name}", hidden[name])
        rows.append((name, *(f"{time:.1f}" for time in times[name]), f"{reached:.0%}"))
    recipe.table(("ms a batch", "step", "read", "both", "max(read, step) / both"), rows)
    faster = times["generator"][1] / times["map"][1]
    recipe.finds(f"map reads {faster:.1f} times as fast as the generator: Python handles batches, not images.")
    before, after = hidden["batch before map"], hidden["prefetch"]
    recipe.finds(f"Parallel decoding hides {before:.0%} of the shorter of reading and step, prefetch too {after:.0%}.")
    cached = times["cache"][1]
    recipe.finds(f"The cache cuts reading to {cached:.1f} ms a batch: it pays where reading is longer than the step.")
    waits = [max(0.0, 1 - times[name][0] / times[name][2]) for name in ("generator", "cache")]
    recipe.finds(f"The model waits {waits[0]:.0%} of the time with the generator, and {waits[1]:.0%} with all changes.")


def draw(figure, times: dict) -> None:
    """Draw for each pipeline reading and step one after the other, both together, and the longer of the two."""
    for axes, (name, (step, read, both)) in zip(figure.subplots(2, 4, sharex="row").flat, times.items(), strict=True):
        axes.barh(1, read, color="tab:orange", label="read alone")
        axes.barh(1, step, left=read, color="tab:green", label="step alone")
        axes.barh(0, both, color="tab:blue", label="both together")
        axes.axvline(max(read, step), color="black", linestyle=":", label="max(read, step)")
        axes.set(title=name, xlabel="ms a batch", yticks=[])
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=4)


if __name__ == "__main__":
    Recipe(__file__, batch=256).run(main)
