"""What the model is fed with, measured on this machine: a training step by batch, and the link between processes."""

import contextlib
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfperf.parallel.processes import WorkerProcesses
from tfperf.parallel.ring import Ring, RingMember
from tfperf.scaling.batch_times import BatchTimes
from tfperf.scaling.links import Link, LinkFit, fit_link, sweep

__all__ = ["measure_batch_times", "measure_link", "ring_link"]

SIZES = tuple(2**power for power in range(10, 25))
"""Bytes of the messages between local processes: 1 KiB to 16 MiB."""

REPEATS = 20

SECONDS = 3.0
"""Time for the steps of one batch size, beside at least `FEWEST` of them."""

FEWEST = 5

DEADLINE = 300.0
"""Seconds for a process to load TensorFlow, trace the step and run it with every batch size."""


def ring_link(link: Link, ranks: int = 2) -> Link:
    """Return the link of one hop, from the link that was fitted to whole allreduces around a ring.

    Args:
        link: seconds of an allreduce by its bytes.
        ranks: that took part.
    """
    hops = 2 * (ranks - 1)
    return Link(link.latency / hops, link.bandwidth * hops / ranks)


def measure_link(ranks: int = 2, sizes: Sequence[int] = SIZES, repeats: int = REPEATS) -> LinkFit:
    """Measure allreduces of processes of this machine, around a ring over its loopback interface.

    Returns:
        The fit to whole allreduces; `ring_link(fit.link)` is one hop of it.

    Raises:
        TfperfError: a process does not come, or ends.
    """
    with Ring(ranks, deadline=DEADLINE) as ring:
        rounds = ring.run(_sweep, [(tuple(sizes), repeats)] * ranks)
    return fit_link(sizes, np.max(rounds, axis=0))  # an allreduce ends when its last rank has the sum


def _sweep(member: RingMember, sizes: Sequence[int], repeats: int) -> NDArray[np.float64]:
    """Seconds of allreduces on one rank, shape (repeats, sizes)."""
    arrays = {size: np.ones(size // 4, np.float32) for size in sizes}
    return sweep(lambda size: member.allreduce(arrays[size]), sizes, repeats)


def measure_batch_times(
    model: str, batches: Sequence[int], *, workers: int = 1, seed: int = 0, seconds: float = SECONDS
) -> BatchTimes:
    """Measure a training step by batch, in fresh processes.

    Args:
        model: what the command line takes.
        batches: examples of a step.
        workers: processes that train at the same time and share this machine's cores; the slowest one counts.
        seed: of the weights of a net by name, and of the inputs.
        seconds: time for the steps of each batch.

    Raises:
        TfperfError: the model cannot be opened or trained, or a process ends.
    """
    with WorkerProcesses(workers, DEADLINE) as processes:
        measured = processes.run(_training_seconds, [(model, tuple(batches), seed, seconds)] * workers)
    return BatchTimes.fit({batch: max(one[batch] for one in measured) for batch in batches})


def _training_seconds(model: str, batches: Sequence[int], seed: int, seconds: float) -> dict[int, float]:
    """Median seconds of a step of plain gradient descent, by batch."""
    with _silence():  # TensorFlow's log of a healthy start
        import keras
        import tensorflow as tf

        tf.config.list_physical_devices()

    from tfperf.exports import open_model

    servable = open_model(model, seed=seed)
    net = servable.net
    optimizer = keras.optimizers.SGD(1e-6)

    @tf.function  # type: ignore[untyped-decorator]
    def step(*tensors: Any) -> Any:
        with tf.GradientTape() as tape:
            outputs = keras.tree.flatten(net(*servable.pack(tensors), training=True))
            loss = tf.add_n([tf.reduce_mean(tf.cast(output, tf.float32) ** 2) for output in outputs])
        gradients = tape.gradient(loss, net.trainable_variables)
        pairs = zip(gradients, net.trainable_variables, strict=True)
        optimizer.apply_gradients([(gradient, weight) for gradient, weight in pairs if gradient is not None])
        return loss

    return {batch: _median_seconds(step, servable.signature.examples(batch, None, seed), seconds) for batch in batches}


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Write nothing to standard error."""
    standard_error, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(standard_error, 2)
        os.close(standard_error)
        os.close(nowhere)


def _median_seconds(step: Any, arrays: Sequence[Any], limit: float) -> float:
    """The median of steps after the first two, which trace and warm up."""
    import tensorflow as tf

    tensors = [tf.constant(array) for array in arrays]
    for _ in range(2):
        step(*tensors).numpy()
    seconds: list[float] = []
    until = time.perf_counter() + limit
    while len(seconds) < FEWEST or time.perf_counter() < until:
        start = time.perf_counter()
        step(*tensors).numpy()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)
