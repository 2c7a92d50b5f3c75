"""Keras callbacks for training on all ranks; `default()` has those that nearly every training wants."""

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf

from tfperf.errors import HorovodError
from tfperf.parallel.horovod.collectives import broadcast_variables, gather, tensorflow_variable
from tfperf.parallel.horovod.coordination import check_equal, differing_ranks, fewest, gather_digests, meet
from tfperf.parallel.horovod.optimizer import distributed_part
from tfperf.parallel.rank_names import name_ranks

__all__ = [
    "BroadcastGlobalVariablesCallback",
    "CheckpointCallback",
    "GuardCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
    "default",
]

POLICIES = ("equalise", "refuse")
"""What to do about unequal numbers of batches."""

_EPOCH_IS_OVER = "the epoch is over"
"""Put into `model.stop_training`, where any true value ends the epoch; told from a real wish to stop by identity."""


def default(*, check_every: int | None = None, unequal: str = "equalise") -> list[keras.callbacks.Callback]:
    """Broadcast at the start, guard, average of metrics: put them first, so that later callbacks see averages.

    Args:
        check_every: batches from one comparison of the weights to the next; None: at the end of each epoch.
        unequal: what to do about unequal numbers of batches, "equalise" or "refuse".
    """
    return [BroadcastGlobalVariablesCallback(), GuardCallback(check_every, unequal), MetricAverageCallback()]


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Before the first batch, gives all ranks the model of one: weights, statistics, seeds and optimizer.

    A DistributedOptimizer alone does so for trainable weights and its own variables. What belongs to its local layers
    stays as it is on each rank.
    """

    def __init__(self, root_rank: int = 0, local_variables: Sequence[Any] = ()) -> None:
        """Take the rank whose values count, and more variables that stay as they are on each rank."""
        super().__init__()
        self.root_rank = root_rank
        self._local = {id(tensorflow_variable(variable)) for variable in local_variables}

    def register_local_var(self, variable: Any) -> None:
        """Leave this variable as it is on each rank."""
        self._local.add(id(tensorflow_variable(variable)))

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        """Broadcast. A model or optimizer not built yet is built by its first batch, and the optimizer sees to it."""
        optimizer = self.model.optimizer
        variables = list(self.model.variables) if self.model.built else []
        if optimizer is not None and optimizer.built:
            variables += optimizer.variables
        metrics = {id(tensorflow_variable(variable)) for variable in self.model.metrics_variables}
        kept = self._local | metrics
        mine = [variable for variable in variables if id(tensorflow_variable(variable)) not in kept]
        part = distributed_part(optimizer)
        if part:
            mine = part.shared(mine)
        _check_same_number(len(mine))
        broadcast_variables(mine, self.root_rank)
        if part and part.built:
            part.keep_start()


def _check_same_number(variables: int) -> None:
    if hvd.size() > 1:
        numbers = gather(variables)
        if len(set(numbers)) > 1:
            raise HorovodError(
                f"expected the same model on every rank, ranks have {numbers} variables: "
                "build and compile it alike on all ranks before fit"
            )


class MetricAverageCallback(keras.callbacks.Callback):
    """At the end of each epoch, replaces each metric by its mean over the ranks that have it.

    A metric with a value for each class has a mean for each. Only callbacks after this one, and the history, see the
    means.
    """

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Average the logs in place."""
        if logs is None or hvd.size() == 1:
            return
        everywhere = gather({name: np.asarray(value, float).tolist() for name, value in logs.items()})
        for name in logs:
            mean = np.mean([there[name] for there in everywhere if name in there], axis=0)
            logs[name] = mean if mean.ndim else float(mean)


class CheckpointCallback(keras.callbacks.ModelCheckpoint):
    """Keras's ModelCheckpoint on rank 0, each file whole; nothing on the others, whose models are equal."""

    @property
    def model(self) -> Any:
        """The model, with another way to save."""
        return _SavedWhole(super().model)

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Save on rank 0, where it is time to."""
        if hvd.rank() == 0:
            super().on_train_batch_end(batch, logs)

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Save on rank 0, where it is time to."""
        if hvd.rank() == 0:
            super().on_epoch_end(epoch, logs)


class _SavedWhole:
    """A model whose files appear at their place when they are complete."""

    def __init__(self, model: keras.Model) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def save(self, filepath: str, **options: Any) -> None:
        _rename_when_written(self._model.save, filepath, options)

    def save_weights(self, filepath: str, **options: Any) -> None:
        _rename_when_written(self._model.save_weights, filepath, options)


def _rename_when_written(write: Callable[..., None], filepath: str, options: dict[str, Any]) -> None:
    path = Path(filepath)
    aside = path.with_name(f".part.{path.name}")  # Keras goes by the end of the name
    try:
        write(str(aside), **options)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


class GuardCallback(keras.callbacks.Callback):
    """Compares the ranks, and ends training on all of them with the odd one named when they differ.

    - Before the first batch: the optimizer must be distributed, and numbers of batches, where known, be equal.
    - After each epoch, and every so many batches: trainable weights and optimizer state must be equal.
    - A rank that runs out of batches waits for the others at the end of the epoch, so that nothing hangs; until they
      come its gradients count as zero. Then all go on from the rank that went furthest, with equal epochs.
    - After each epoch, statistics that ranks gather apart, such as BatchNormalization's, are averaged.

    Local layers of the optimizer are left as they are on each rank.
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
        self._batches = self._begun = 0
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
            check_equal(self._shared(_untrained(self.model)), "weights that are not trained")
        known: list[Any] = gather(self.params.get("steps")) if hvd.size() > 1 else [None]
        if None not in known:
            self._equalise(known)

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Count the batches of this epoch."""
        self._batches, self._begun = 0, self._steps_taken()

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
        several = self.model.steps_per_execution > 1  # Keras counts those of an execution that the data ended early
        counts = meet("at the end of an epoch", self._steps_taken() - self._begun if several else self._batches)
        if hvd.size() == 1:
            return
        if self._equalise(counts):
            variables = self._shared([*self.model.variables, *self.model.optimizer.variables])
            broadcast_variables(variables, counts.index(max(counts)))
        self._check_weights()
        self._average_statistics()

    def _steps_taken(self) -> int:
        """Steps that the optimizer has taken since it was made."""
        optimizer: Any = distributed_part(self.model.optimizer)
        return int(tensorflow_variable(optimizer._iterations))

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

    def _shared(self, variables: Sequence[Any]) -> list[Any]:
        """Those of the variables that do not belong to local layers."""
        optimizer: Any = distributed_part(self.model.optimizer)
        return list(optimizer.shared(variables))

    def _check_weights(self) -> None:
        optimizer: Any = distributed_part(self.model.optimizer)
        check_equal(self._shared(self.model.trainable_variables))
        check_equal(optimizer.shared_state(), "optimizer state")

    def _average_statistics(self) -> None:
        """Average variables that are no weights, of real numbers, where they differ."""
        shared = self._shared(self.model.non_trainable_variables)
        statistics = [variable for variable in shared if keras.backend.is_float_dtype(variable.dtype)]
        digests = gather_digests(statistics)
        for number, variable in enumerate(statistics):
            if differing_ranks({rank: theirs[number] for rank, theirs in digests.items()}):
                mine = tensorflow_variable(variable)
                exact = tf.cast(mine, tf.float64 if mine.dtype == tf.float64 else tf.float32)  # Horovod has no bfloat16
                mine.assign(tf.cast(hvd.allreduce(exact, op=hvd.Average), mine.dtype))


def _untrained(model: keras.Model) -> list[keras.Variable]:
    """Frozen weights and statistics, without the state of random generators."""
    trained = {id(variable) for variable in model.trainable_variables}
    return [variable for variable in model.weights if id(variable) not in trained]


class LearningRateScheduleCallback(keras.callbacks.Callback):
    """Sets the learning rate to `initial_lr` times a multiplier, from `start_epoch` to before `end_epoch`.

    When the rate changes under momentum, the velocity, which holds the old rate, is scaled to the new one: the
    momentum correction of Goyal et al., "Accurate, Large Minibatch SGD" (2017), section 3. Keras has momentum
    as a constant of the compiled step, so the velocity is scaled and not, as in Horovod, the momentum.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        """Take the schedule.

        Args:
            initial_lr: the rate at multiplier 1.
            multiplier: of the epoch, a real number unless `staircase`; or a constant, taken to the power of the
                epochs since `start_epoch`.
            start_epoch: the first epoch in which this sets the rate.
            end_epoch: the first epoch in which it no longer does; None: it always does.
            staircase: set it once an epoch; False: before each batch.
            momentum_correction: scale the velocity with the rate.
            steps_per_epoch: batches of an epoch, the same on each rank; None: as many as the rank with the fewest has.

        Raises:
            ValueError: there is no initial rate.
        """
        super().__init__()
        if initial_lr is None:
            raise ValueError("expected initial_lr to be a number, received None; pass the rate that compile was given")
        self.initial_lr = initial_lr
        self.multiplier = multiplier if callable(multiplier) else lambda epoch: multiplier ** (epoch - start_epoch)
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self._steps = steps_per_epoch
        self._epoch = 0

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        """Learn how long an epoch is on all ranks.

        Raises:
            ValueError: that is needed, and a rank does not know it.
        """
        if not self.staircase and self.steps_per_epoch is None:
            self._steps = fewest(self.params.get("steps"))
            if self._steps is None:
                raise ValueError("expected an epoch of known length, this one is unknown; pass steps_per_epoch=")

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Set the rate of a staircase."""
        self._epoch = epoch
        if self.staircase and self._is_on():
            self._set(self.initial_lr * self.multiplier(epoch))

    def on_train_batch_begin(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Set the rate of a ramp."""
        if not self.staircase and self._steps and self._is_on():
            self._set(self.initial_lr * self.multiplier(self._epoch + batch / self._steps))

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Write the rate into the logs, under Keras's name for it."""
        if logs is not None:
            logs["learning_rate"] = float(self.model.optimizer.learning_rate)

    def _is_on(self) -> bool:
        return self.start_epoch <= self._epoch and (self.end_epoch is None or self._epoch < self.end_epoch)

    def _set(self, rate: float) -> None:
        optimizer = self.model.optimizer
        before = float(optimizer.learning_rate)
        optimizer.learning_rate = rate
        if self.momentum_correction and before and rate != before:
            for velocity in _velocities(optimizer):
                velocity.assign(velocity * (rate / before))


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the rate, batch by batch, from `initial_lr` / size to `initial_lr` over the first epochs.

    `initial_lr` is the rate for all ranks together, that of one rank times their number: gradual warm-up of
    Goyal et al. (2017), section 2.2.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        """Take the rate to arrive at, the epochs until then, and whether rank 0 says when it is there."""
        super().__init__(
            initial_lr,
            self._ramp,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self.warmup_epochs = warmup_epochs
        self.verbose = verbose

    def _ramp(self, epoch: float) -> float:
        ended = epoch + 1 / (self._steps or 1)  # counts the batch about to be trained: the last is at 1
        size: int = hvd.size()
        return (1 + ended * (size - 1) / self.warmup_epochs) / size

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Have the rate arrive, whatever the last execution of several steps began with; say so on rank 0."""
        if epoch == self.warmup_epochs - 1:
            self._set(self.initial_lr)
        super().on_epoch_end(epoch, logs)
        if epoch == self.warmup_epochs - 1 and self.verbose and hvd.rank() == 0:
            rate = float(self.model.optimizer.learning_rate)
            print(f"\nepoch {epoch + 1}: warm-up of the learning rate ended at {rate:g}")


def _velocities(optimizer: Any) -> list[Any]:
    """The velocity of each weight under SGD with momentum, which has the learning rate in it; else none."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if not isinstance(inner, keras.optimizers.SGD) or not inner.momentum or not inner.built:
        return []
    return [velocity for velocity in inner.momentums if velocity is not None]
