"""Keras callbacks for training on all ranks; `default()` has those that nearly every training wants."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import keras

from tfperf.errors import HorovodError
from tfperf.parallel.horovod.broadcasting import broadcast_variables, tensorflow_variable
from tfperf.parallel.horovod.gathering import gather
from tfperf.parallel.horovod.guard import GuardCallback
from tfperf.parallel.horovod.learning_rate import LearningRateScheduleCallback, LearningRateWarmupCallback
from tfperf.parallel.horovod.optimizer import distributed_part

__all__ = [
    "BroadcastGlobalVariablesCallback",
    "CheckpointCallback",
    "GuardCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
    "default",
]


def default(*, check_every: int | None = None, unequal: str = "equalise") -> list[keras.callbacks.Callback]:
    """Broadcast at the start, guard, average of metrics: put them first, so that later callbacks see averages.

    Args:
        check_every: batches from one comparison of the weights to the next; None: at the end of each epoch.
        unequal: what to do about unequal numbers of batches, "equalise" or "refuse".
    """
    return [BroadcastGlobalVariablesCallback(), GuardCallback(check_every, unequal), MetricAverageCallback()]


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Before the first batch, gives all ranks the model of one: weights, statistics, seeds and optimizer.

    A DistributedOptimizer alone does so for trainable weights and its own variables.
    """

    def __init__(self, root_rank: int = 0, local_variables: Sequence[Any] = ()) -> None:
        """Take the rank whose values count, and the variables that stay as they are on each rank."""
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
        _check_same_number(len(mine))
        broadcast_variables(mine, self.root_rank)
        part = distributed_part(optimizer)
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

    Only callbacks after this one, and the history, see the means.
    """

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Average the logs in place."""
        if logs is None or hvd.size() == 1:
            return
        everywhere = gather({name: float(value) for name, value in logs.items()})
        for name in logs:
            values = [there[name] for there in everywhere if name in there]
            logs[name] = sum(values) / len(values)


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
