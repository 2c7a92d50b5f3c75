"""Strategy `none`: one net on the device that TensorFlow chooses."""

import tensorflow as tf

from tfperf.parallel.strategies.distributed import Distributed
from tfperf.parallel.strategies.loop import run
from tfperf.parallel.strategies.task import Task, Trained

__all__ = ["train"]


def train(task: Task, workers: int) -> Trained:  # noqa: ARG001  # it has one
    """Train in this process, whatever the number of workers."""
    return run(Distributed(tf.distribute.get_strategy()), task)
