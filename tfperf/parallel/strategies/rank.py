"""One rank of strategy `horovod`; `train` starts it by `python -m tfperf.parallel.strategies.rank FOLDER`."""

import pickle
import sys
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from numpy.typing import NDArray

import tfperf.parallel.horovod as hvd
from tfperf.errors import BAD_INPUT, TfperfError
from tfperf.parallel.horovod.collectives import Reduction
from tfperf.parallel.strategies.replicas import digest, loss_and_gradients, run, share
from tfperf.parallel.strategies.starting import ERROR, TASK, TRAINED
from tfperf.parallel.strategies.task import Task

__all__ = ["Rank", "main"]


class Rank:
    """One rank's copy of the net."""

    def __init__(self) -> None:
        hvd.init()
        self.replicas: int = hvd.size()
        self._sum = Reduction("train", op=hvd.Sum)
        self._step = tf.function(self._step_of_one, autograph=False)
        self._net: keras.Model

    def create(self, task: Task) -> None:
        """Build the net, with the first weights of rank 0."""
        self._net = task.built()
        hvd.broadcast_variables(self._net.weights, root_rank=0)
        self._net.optimizer.build(self._net.trainable_variables)

    def step(self, batch: Any) -> float:
        """Train on this rank's share of a global batch; the loss of all."""
        return float(self._step(share(batch, hvd.rank(), self.replicas)))

    def weights(self) -> list[NDArray[Any]]:
        """The weights of this rank."""
        weights: list[NDArray[Any]] = self._net.get_weights()
        return weights

    def digests(self) -> list[str]:
        """The digest of the trainable weights of each rank."""
        own = digest([variable.numpy() for variable in self._net.trainable_weights])
        digests: list[str] = hvd.allgather_object(own)
        return digests

    def _step_of_one(self, batch: Any) -> tf.Tensor:
        loss, gradients = loss_and_gradients(self._net, batch, self.replicas)
        loss, *gradients = self._sum([loss, *gradients])
        self._net.optimizer.apply(gradients, self._net.trainable_variables)
        return loss


def main(folder: Path) -> int:
    """Train on the task that is in a folder, and leave there what came of it; the exit code."""
    sys.path[:], task = pickle.loads((folder / TASK).read_bytes())  # noqa: S301  # of the process that started this one
    try:
        trained = run(Rank(), Task.unpickled(task))
    except TfperfError as error:
        (folder / ERROR).write_text(str(error), encoding="utf-8")
        return BAD_INPUT
    if hvd.rank() == 0:
        (folder / TRAINED).write_bytes(pickle.dumps(trained))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
