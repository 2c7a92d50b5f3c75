"""The callback that stops training when ranks are not doing the same."""

import warnings
from typing import Any

import horovod.tensorflow as hvd
import keras

from tfperf.errors import HorovodError
from tfperf.parallel.horovod.broadcasting import broadcast_variables, tensorflow_variable
from tfperf.parallel.horovod.digests import check_equal, differing_ranks, gather_digests
from tfperf.parallel.horovod.gathering import gather
from tfperf.parallel.horovod.meeting import meet, name_ranks
from tfperf.parallel.horovod.optimizer import distributed_part

__all__ = ["GuardCallback"]

_EPOCH_IS_OVER = "the epoch is over"
"""Put into `model.stop_training`, where any true value ends the epoch; told from a real wish to stop by identity."""

POLICIES = ("equalise", "refuse")


class GuardCallback(keras.callbacks.Callback):
    """Compares the ranks, and ends training on all of them with the odd one named when they differ.

    - Before the first batch: the optimizer must be distributed, and numbers of batches, where known, be equal.
    - After each epoch, and every so many batches: trainable weights and optimizer state must be equal.
    - A rank that runs out of batches waits for the others at the end of the epoch, so that nothing hangs; until they
      come its gradients count as zero. Then all go on from the rank that went furthest, with equal epochs.
    - After each epoch, statistics that ranks gather apart, such as BatchNormalization's, are averaged.
    """

    def __init__(self, every: int | None = None, unequal: str = "equalise") -> None:
        """Take the batches between comparisons and what to do about unequal epochs.

        Args:
            every: batches from one comparison of the weights to the next; None: at the end of each epoch only.
            unequal: "equalise": shorten all epochs to the shortest, with a warning; "refuse": raise.

        Raises:
            ValueError: an argument is out of its range.
        """
        super().__init__()
        if every is not None and every < 1:
            raise ValueError(f"expected every to be a number of batches from 1 on, received {every}")
        if unequal not in POLICIES:
            raise ValueError(f"expected unequal to be one of {', '.join(POLICIES)}, received {unequal!r}")
        self.every = every
        self.unequal = unequal
        self._batches = 0
        self._longest: int | None = None

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        """Check that the optimizer is distributed and the numbers of batches are equal.

        Raises:
            HorovodError: they are not.
        """
        if distributed_part(self.model.optimizer) is None:
            raise HorovodError(
                "expected a distributed optimizer, each rank would train alone: compile with "
                "hvd.DistributedOptimizer(...), or load with hvd.load_model"
            )
        self._longest = None
        if hvd.size() > 1 and self.model.built:
            check_equal(_untrained(self.model), "weights that are not trained")
        known: list[Any] = gather(self.params.get("steps")) if hvd.size() > 1 else [None]
        if None not in known:
            self._equalise(known)

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Count the batches of this epoch."""
        self._batches = 0

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Compare the weights when it is time to; end an epoch that others cannot follow further."""
        passed = batch + 1  # with steps_per_execution, several at once
        if self.every and passed // self.every > self._batches // self.every:
            self._check_weights()
        self._batches = passed
        if self._longest is not None and passed >= self._longest and not self.model.stop_training:
            self.model.stop_training = _EPOCH_IS_OVER

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Meet the others, compare, and average the statistics.

        Raises:
            HorovodError: numbers of batches differ and are to be refused, or weights differ.
        """
        if self.model.stop_training is _EPOCH_IS_OVER:
            self.model.stop_training = False
        counts = meet("at the end of an epoch", self._batches)
        if hvd.size() == 1:
            return
        if self._equalise(counts):
            broadcast_variables([*self.model.variables, *self.model.optimizer.variables], counts.index(max(counts)))
        self._check_weights()
        self._average_statistics()

    def _equalise(self, counts: list[int]) -> bool:
        """Whether numbers of batches differ; if so, all epochs from now on are as long as the shortest."""
        if len(set(counts)) == 1:
            return False
        short = [rank for rank, count in enumerate(counts) if count == min(counts)]
        shortest, longest = min(counts), max(counts)
        words = f"expected as many batches on every rank, {name_ranks(short)} had {shortest}, others up to {longest}"
        if self.unequal == "refuse":
            raise HorovodError(f"{words}: give every rank as many, with hvd.shard")
        warnings.warn(f"{words}: epochs are cut to {shortest} from now on", stacklevel=2)
        self._longest = shortest
        return True

    def _check_weights(self) -> None:
        optimizer: Any = distributed_part(self.model.optimizer)
        check_equal(optimizer.shared(self.model.trainable_variables))
        check_equal(optimizer.shared_state(), "optimizer state")

    def _average_statistics(self) -> None:
        """Average variables that are no weights, of real numbers, where they differ."""
        statistics = [v for v in self.model.non_trainable_variables if keras.backend.is_float_dtype(v.dtype)]
        digests = gather_digests(statistics)
        for number, variable in enumerate(statistics):
            if differing_ranks({rank: theirs[number] for rank, theirs in digests.items()}):
                tensorflow_variable(variable).assign(hvd.allreduce(variable.value, op=hvd.Average))


def _untrained(model: keras.Model) -> list[keras.Variable]:
    """Frozen weights and statistics, without the state of random generators."""
    trained = {id(variable) for variable in model.trainable_variables}
    return [variable for variable in model.weights if id(variable) not in trained]
