"""Where the replicas of each strategy run: in this process, in workers with a server each, or as ranks."""

import dataclasses
import os
import pickle
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tfperf.errors import TfperfError
from tfperf.parallel.cluster import LocalCluster, run_on_workers
from tfperf.parallel.launch import Job, launch
from tfperf.parallel.private_network import in_private_network
from tfperf.parallel.strategies.task import LIMIT, Task, Trained

__all__ = ["ERROR", "STARTERS", "TASK", "TRAINED"]

TASK, TRAINED, ERROR = "task", "trained", "error"
"""Files in the folder that this process shares with the ranks that it starts."""


def _train_alone(task: Task, workers: int) -> Trained:  # noqa: ARG001  # it has one
    """Train in this process on the device that TensorFlow chooses, whatever the number of workers."""
    import tensorflow as tf

    from tfperf.parallel.strategies.replicas import Replicas, run

    return run(Replicas(tf.distribute.get_strategy()), task)


def _train_mirrored(task: Task, workers: int) -> Trained:
    """Train with a copy of the net on each of so many GPUs or, where there is none, logical CPU devices.

    Raises:
        TfperfError: there are fewer GPUs, or TensorFlow has started with fewer CPU devices.
    """
    import tensorflow as tf

    from tfperf.parallel.strategies.replicas import Replicas, find_devices, run

    devices = find_devices(workers)
    on_gpus = "GPU" in devices[0]
    # The default, collective operations, would number those of a second training in this process as those of the first.
    exchange = tf.distribute.NcclAllReduce() if on_gpus else tf.distribute.ReductionToOneDevice()
    return run(Replicas(tf.distribute.MirroredStrategy(devices, cross_device_ops=exchange)), task)


def _train_on_workers(task: Task, workers: int) -> Trained:
    """Train by MultiWorkerMirroredStrategy in so many processes, in a network that nobody else reaches.

    Raises:
        TfperfError: there can be no such network, or a worker fails or dies.
    """
    return in_private_network(_start_workers, task.pickled(), workers)


def _start_workers(task: bytes, workers: int) -> Trained:
    trained = run_on_workers(_work, task, workers=workers, deadline=LIMIT)
    return dataclasses.replace(trained[0], digests=tuple(digest for one in trained for digest in one.digests))


def _work(task: bytes) -> Trained:
    import tensorflow as tf

    from tfperf.parallel.strategies.replicas import Replicas, run

    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before TensorFlow computes: it meets the other workers
    return run(Replicas(strategy), Task.unpickled(task))


def _train_with_server(task: Task, workers: int) -> Trained:
    """Train with one server, which has the variables, and so many workers, in a network that nobody else reaches.

    Raises:
        TfperfError: there can be no such network, or a server or worker fails or dies.
    """
    return in_private_network(_coordinate, task.pickled(), workers)


def _coordinate(task: bytes, workers: int) -> Trained:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # else TensorFlow writes that its servers have ended
    from tfperf.parallel.strategies.replicas import ParameterServer, run

    with LocalCluster(workers, parameter_servers=1, deadline=LIMIT) as cluster:
        return run(ParameterServer(cluster.resolver, workers), Task.unpickled(task))


def _train_on_ranks(task: Task, workers: int) -> Trained:
    """Train as the Horovod rank that this process is, or else on so many ranks on loopback that end with this process.

    Raises:
        TfperfError: Horovod is missing, a rank fails or dies, or the task cannot be sent to the ranks.
    """
    if "HOROVOD_RANK" in os.environ:
        from tfperf.parallel.strategies.rank import Rank  # loads Horovod
        from tfperf.parallel.strategies.replicas import run

        return run(Rank(), task)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / TASK).write_bytes(pickle.dumps((sys.path, task.pickled())))
        failure = launch(Job([sys.executable, "-P", "-m", "tfperf.parallel.strategies.rank", name], ranks=workers))
        if (folder / ERROR).exists():
            raise TfperfError((folder / ERROR).read_text(encoding="utf-8"))
        if failure:
            raise TfperfError(f"expected {workers} ranks to train to the end; {failure.words}")
        trained: Trained = pickle.loads((folder / TRAINED).read_bytes())  # noqa: S301  # rank 0's, in our own folder
        return trained


STARTERS: dict[str, Callable[[Task, int], Trained]] = {
    "none": _train_alone,
    "mirrored": _train_mirrored,
    "multi_worker": _train_on_workers,
    "parameter_server": _train_with_server,
    "horovod": _train_on_ranks,
}
"""Name of a strategy -> trains on a task with so many workers."""
