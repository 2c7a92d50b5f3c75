"""Strategy `horovod`: each replica is a rank, a process of its own."""

import os
import pickle
import sys
import tempfile
from pathlib import Path

from tfperf.errors import TfperfError
from tfperf.parallel.launch import Job, launch
from tfperf.parallel.strategies.task import Task, Trained

__all__ = ["ERROR", "TASK", "TRAINED", "train"]

TASK, TRAINED, ERROR = "task", "trained", "error"
"""Files in the folder that this process shares with the ranks that it starts."""


def train(task: Task, workers: int) -> Trained:
    """Train as the rank that this process is, or else on so many ranks on loopback, which end with this process.

    Raises:
        TfperfError: Horovod is missing, a rank fails or dies, or the task cannot be sent to the ranks.
    """
    if "HOROVOD_RANK" in os.environ:
        from tfperf.parallel.strategies.loop import run
        from tfperf.parallel.strategies.rank import Rank  # loads Horovod

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
