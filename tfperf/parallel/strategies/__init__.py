"""Training under a strategy by name: one loop, and five ways to share it among devices and processes."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from tfperf.errors import TfperfError
from tfperf.parallel.strategies.starting import STARTERS
from tfperf.parallel.strategies.task import Task, Trained

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

__all__ = ["STRATEGIES", "Trained", "train"]

STRATEGIES = tuple(STARTERS)
"""Names of the strategies."""


def train(
    build: Callable[[], "keras.Model"],
    batches: Callable[[], "tf.data.Dataset"],
    steps: int,
    *,
    strategy: str = "none",
    workers: int = 2,
    seed: int = 0,
) -> Trained:
    """Train a net synchronously: each replica takes an equal part of every batch, and all make the same update.

    Equal seeds and data give the weights of one device under each strategy, up to rounding, for nets without batch
    normalization and dropout: each replica normalizes with the mean and variance of its own part, and draws its own
    random numbers, so such nets train differently with each number of replicas. A loss must be a mean over the batch,
    as Keras's are by default.

    Under `multi_worker`, `parameter_server` and `horovod` replicas are processes on this machine, which listen on
    loopback only and end with the call. They call `build` and `batches` themselves, which are pickled with what they
    use: arrays can be, tensors and data sets not.

    Args:
        build: gives a Keras model with weights, compiled with its optimizer and loss.
        batches: gives a `tf.data.Dataset` of global batches (inputs, labels), the same in every process.
        steps: batches to train on; where `batches` has fewer, it is repeated.
        strategy: `none`: one device. `mirrored`: MirroredStrategy on the GPUs of this process, or on logical CPU
            devices where there is none. `multi_worker`: MultiWorkerMirroredStrategy. `parameter_server`: the variables
            are on a server, and workers compute gradients. `horovod`: ranks; where a launcher has started this process
            as a rank, it takes part as that.
        workers: replicas; `none` has one, and a Horovod rank takes part in those that there are.
        seed: of the first weights, and of Keras's random numbers.

    Raises:
        TfperfError: there is no such strategy, `build` or `batches` fails, a batch cannot be shared equally, devices or
            Horovod are missing, a worker dies, or the replicas end with different weights.
    """
    if strategy not in STRATEGIES:
        raise TfperfError(f"expected a strategy of {', '.join(STRATEGIES)}. Received: {strategy!r}")
    for name, number in (("steps", steps), ("workers", workers)):
        if number < 1:
            raise TfperfError(f"expected {name} to be at least 1. Received: {name}={number}")
    trained = STARTERS[strategy](Task(build, batches, steps, seed), workers)
    if len(set(trained.digests)) > 1:
        raise TfperfError(
            f"expected equal weights on all replicas after {steps} steps. Received: {' '.join(trained.digests)}; "
            "the replicas have drifted apart, so a gradient was not summed, or first weights were not equal"
        )
    return trained
