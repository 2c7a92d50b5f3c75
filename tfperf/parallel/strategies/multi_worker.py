"""Strategy `multi_worker`: MultiWorkerMirroredStrategy, whose replicas are processes with a server each."""

import dataclasses

from tfperf.parallel.cluster import run_on_workers
from tfperf.parallel.private_network import in_private_network
from tfperf.parallel.strategies.task import LIMIT, Task, Trained

__all__ = ["train"]


def train(task: Task, workers: int) -> Trained:
    """Train in so many processes, in a network that nobody else reaches.

    Raises:
        TfperfError: there can be no such network, or a worker fails or dies.
    """
    return in_private_network(_start_workers, task.pickled(), workers)


def _start_workers(task: bytes, workers: int) -> Trained:
    trained = run_on_workers(_work, task, workers=workers, deadline=LIMIT)
    return dataclasses.replace(trained[0], digests=tuple(digest for one in trained for digest in one.digests))


def _work(task: bytes) -> Trained:
    import tensorflow as tf

    from tfperf.parallel.strategies.distributed import Distributed
    from tfperf.parallel.strategies.loop import run

    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before TensorFlow computes: it meets the other workers
    return run(Distributed(strategy), Task.unpickled(task))
