"""Strategy `parameter_server`: the variables are on a server, and workers compute gradients of what they read there."""

import os

from tfperf.parallel.cluster import LocalCluster
from tfperf.parallel.private_network import in_private_network
from tfperf.parallel.strategies.task import LIMIT, Task, Trained

__all__ = ["train"]


def train(task: Task, workers: int) -> Trained:
    """Train with one server and so many workers, in a network that nobody else reaches.

    Raises:
        TfperfError: there can be no such network, or a server or worker fails or dies.
    """
    return in_private_network(_coordinate, task.pickled(), workers)


def _coordinate(task: bytes, workers: int) -> Trained:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # else TensorFlow writes that its servers have ended
    from tfperf.parallel.strategies.coordinator import ParameterServer
    from tfperf.parallel.strategies.loop import run

    with LocalCluster(workers, parameter_servers=1, deadline=LIMIT) as cluster:
        return run(ParameterServer(cluster.resolver, workers), Task.unpickled(task))
