"""What the model is fed with, measured on this machine: a training step by batch, and the link between processes.

And what it predicts: steps of local processes that exchange their gradients.
"""

import contextlib
import functools
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tfperf.parallel.ring import Ring, RingMember
from tfperf.processes import WorkerProcesses
from tfperf.scaling.links import Link, LinkFit, fit_link, sweep
from tfperf.scaling.workload import BatchTimes

__all__ = ["StepTimes", "mean_gradient", "measure_batch_times", "measure_link", "measure_step", "ring_link"]

SIZES = tuple(2**power for power in range(10, 25))
"""Bytes of the messages between local processes: 1 KiB to 16 MiB."""

REPEATS = 20

SECONDS = 3.0
"""Time for the steps of one batch size, beside at least `FEWEST` of them."""

FEWEST = 5

STEPS = 5
"""Steps of each kind that processes make together."""

LEAD = 0.2
"""Seconds until rings that begin together begin, by which all of their processes are asked."""

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


def measure_link(ranks: int = 2, sizes: Sequence[int] = SIZES, repeats: int = REPEATS, rings: int = 1) -> LinkFit:
    """Measure allreduces of processes of this machine, around a ring over its loopback interface.

    Args:
        ranks: processes of a ring.
        sizes: bytes.
        repeats: rounds.
        rings: that add up at the same time, each on its share of the cores. With one ring, every rank may have a core;
            several tell of more workers than cores, who have to give theirs away for each message.

    Returns:
        The fit to whole allreduces, of the slowest ring; `ring_link(fit.link, ranks)` is one hop of it.

    Raises:
        TfperfError: a process does not come, or ends.
    """
    cores = sorted(os.sched_getaffinity(0))
    shares = [cores[ring::rings] or [cores[ring % len(cores)]] for ring in range(rings)]
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(rings) as threads:
        running = [stack.enter_context(Ring(ranks, deadline=DEADLINE)) for _ in shares]
        begin = time.monotonic() + LEAD
        calls = [
            threads.submit(ring.run, _sweep, [(tuple(sizes), repeats, share, begin)] * ranks)
            for ring, share in zip(running, shares, strict=True)
        ]
        rounds = [call.result() for call in calls]
    return fit_link(sizes, np.max(rounds, axis=(0, 1)))  # an allreduce ends when its last rank has the sum


def _sweep(
    member: RingMember, sizes: Sequence[int], repeats: int, cores: Sequence[int], begin: float
) -> NDArray[np.float64]:
    """Seconds of allreduces on one rank, on these cores, from that second on; shape (repeats, sizes)."""
    for thread in Path("/proc/self/task").iterdir():
        os.sched_setaffinity(int(thread.name), cores)
    arrays, number = {size: np.ones(size // 4, np.float32) for size in sizes}, np.zeros(member.size, np.float32)
    time.sleep(max(0.0, begin - time.monotonic()))
    add_up = functools.partial(member.allreduce, in_place=True)
    return sweep(lambda size: add_up(arrays[size]), sizes, repeats, before=lambda: member.allreduce(number))


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
            loss = _loss(servable, tensors)
        gradients = tape.gradient(loss, net.trainable_variables)
        pairs = zip(gradients, net.trainable_variables, strict=True)
        optimizer.apply_gradients([(gradient, weight) for gradient, weight in pairs if gradient is not None])
        return loss

    return {batch: _median_seconds(step, servable.signature.examples(batch, None, seed), seconds) for batch in batches}


def _loss(servable: Any, tensors: Sequence[Any]) -> Any:
    """The mean square of a net's outputs."""
    import keras
    import tensorflow as tf

    outputs = keras.tree.flatten(servable.net(*servable.pack(tensors), training=True))
    return tf.add_n([tf.reduce_mean(tf.cast(output, tf.float32) ** 2) for output in outputs])


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


class StepTimes(NamedTuple):
    """Seconds of workers that begin together, until the last of them has ended.

    Attributes:
        compute: the gradients of a worker's examples (t1).
        exchange: an allreduce of these gradients (t2).
        in_turns: a step that first computes, then exchanges.
        at_once: a step that computes while the gradients of the step before are exchanged.
        latency: an allreduce of one number a worker.
    """

    compute: float
    exchange: float
    in_turns: float
    at_once: float
    latency: float


def measure_step(ring: Ring, model: str, batch: int, *, seed: int = 0, repeats: int = STEPS) -> StepTimes:
    """Measure a training step of the processes of a ring, each of which computes on one thread of the processor.

    Args:
        ring: one that has started; its bandwidth is that of the exchange.
        model: what the command line takes.
        batch: examples of each worker.
        seed: of the weights of a net by name, and of the inputs.
        repeats: steps of each kind, in turns; the median counts.

    Raises:
        TfperfError: the model cannot be opened or trained, or a process ends.
    """
    rounds = ring.run(_step_seconds, [(model, batch, seed, repeats)] * ring.size)
    return StepTimes(*np.median(np.max(rounds, axis=0), axis=0).tolist())


def mean_gradient(ring: Ring, model: str, batch: int, *, seed: int = 0) -> NDArray[np.float32]:
    """Compute the mean of all workers' gradients, where each has its own part of the same examples.

    Without batch normalization and dropout, n workers of batch b have the gradient of one worker of batch n b.

    Args:
        ring: one that has started.
        model: what the command line takes.
        batch: examples of each worker.
        seed: of the weights of a net by name, and of the inputs.

    Returns:
        All gradients, one after the other, shape (weights,).

    Raises:
        TfperfError: the model cannot be opened or trained, or a process ends.
    """
    return ring.run(_mean_gradient, [(model, batch, seed)] * ring.size)[0]


def _step_seconds(member: RingMember, model: str, batch: int, seed: int, repeats: int) -> NDArray[np.float64]:
    """Seconds on one rank, shape (repeats, fields of `StepTimes`)."""
    compute = _gradient_of(member, model, batch, seed)
    exchange = functools.partial(member.allreduce, compute())
    meet = functools.partial(member.allreduce, np.zeros(member.size, np.float32))
    with ThreadPoolExecutor(1) as thread:

        def at_once() -> None:
            exchanged = thread.submit(exchange)
            compute()
            exchanged.result()

        ways: tuple[Callable[[], object], ...]  # in the order of the fields
        ways = (compute, exchange, lambda: member.allreduce(compute()), at_once, meet)
        return sweep(lambda way: ways[way](), range(len(ways)), repeats, before=meet)


def _mean_gradient(member: RingMember, model: str, batch: int, seed: int) -> NDArray[np.float32]:
    total: NDArray[np.float32] = member.allreduce(_gradient_of(member, model, batch, seed)())
    total /= member.size
    return total


@functools.cache
def _gradient_of(member: RingMember, model: str, batch: int, seed: int) -> Callable[[], NDArray[np.float32]]:
    """What computes the gradients of a rank's part of the examples, as one array."""
    with _silence():
        import tensorflow as tf

        tf.config.set_visible_devices([], "GPU")  # the same each time, as TensorFlow allows no other later
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)

    from tfperf.exports import open_model

    servable = open_model(model, seed=seed)
    own = slice(member.rank * batch, (member.rank + 1) * batch)
    inputs = [tf.constant(array[own]) for array in servable.signature.examples(member.size * batch, None, seed)]

    @tf.function  # type: ignore[untyped-decorator]
    def gradient(*tensors: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = _loss(servable, tensors)
        gradients = tape.gradient(loss, servable.net.trainable_variables)
        parts = [tf.reshape(tf.cast(one, tf.float32), [-1]) for one in gradients if one is not None]
        return tf.concat(parts, axis=0)

    return lambda: gradient(*inputs).numpy()
