"""Strategy `mirrored`: a copy of the net on each device of this process."""

import tensorflow as tf

from tfperf.parallel.strategies.devices import find_devices
from tfperf.parallel.strategies.distributed import Distributed
from tfperf.parallel.strategies.loop import run
from tfperf.parallel.strategies.task import Task, Trained

__all__ = ["train"]


def train(task: Task, workers: int) -> Trained:
    """Train on so many GPUs, or where there is none, logical CPU devices.

    Raises:
        TfperfError: there are fewer GPUs, or TensorFlow has started with fewer CPU devices.
    """
    devices = find_devices(workers)
    on_gpus = "GPU" in devices[0]
    # The default, collective operations, would number those of a second training in this process as those of the first.
    exchange = tf.distribute.NcclAllReduce() if on_gpus else tf.distribute.ReductionToOneDevice()
    return run(Distributed(tf.distribute.MirroredStrategy(devices, cross_device_ops=exchange)), task)
