"""Training that goes on when workers die or join: what to keep, and how to go on from it.

Run it with `tfperf launch -np 2 --min-np 1 --host-discovery-script hosts.sh python train.py`.
The parts are those of `horovod.elastic` with Keras 3's variables.
"""

import contextlib
import copy
import functools
from collections.abc import Callable, Iterator
from typing import Any

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf
from horovod.common.elastic import ObjectState, run_fn
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt

from tfperf.parallel.horovod.collectives import broadcast_variables, tensorflow_variable
from tfperf.parallel.horovod.coordination import fewest, meet
from tfperf.parallel.horovod.optimizer import distributed_part
from tfperf.parallel.horovod.process import shutdown, shutdown_at_exit
from tfperf.parallel.horovod.stalls import forget_exchanges, watching

__all__ = ["CommitStateCallback", "KerasState", "UpdateBatchStateCallback", "UpdateEpochStateCallback", "run"]


class KerasState(ObjectState):
    """What all workers have in common: a model, its optimizer and plain values, as attributes.

    `commit()` keeps them in memory, `restore()` goes back to the last commit, `sync()` gives all workers those
    of rank 0, but for local layers of the optimizer. `run` calls the last two when workers died or joined.
    """

    _saved_state: dict[str, Any]

    def __init__(self, model: keras.Model, optimizer: keras.optimizers.Optimizer | None = None, **values: Any) -> None:
        """Keep the model, built, its optimizer, and the values by name.

        Raises:
            ValueError: the model is not built, or has no optimizer and none is given.
        """
        self.model = model
        self.optimizer: Any = optimizer or getattr(model, "optimizer", None)
        if not model.built:
            raise ValueError("expected a built model; call model.build(input_shape) first")
        if self.optimizer is None:
            raise ValueError("expected an optimizer; pass optimizer= or compile the model first")
        part = distributed_part(self.optimizer)
        if part:
            part.keep_start()  # `sync` makes workers equal, whenever they come
        if not self.optimizer.built:
            self.optimizer.build(model.trainable_variables)
        self._kept = self._read()
        super().__init__(bcast_object=hvd.broadcast_object, get_rank=hvd.rank, **values)
        self._copy_values()

    def save(self) -> None:
        """Keep what is now; part of `commit`."""
        self._kept = self._read()
        super().save()
        self._copy_values()

    def take(self) -> tuple[list[np.ndarray], dict[str, Any]]:
        """What is now, for `commit_taken`."""
        return self._read(), copy.deepcopy({name: getattr(self, name) for name in self._saved_state})

    def commit_taken(self, taken: tuple[list[np.ndarray], dict[str, Any]]) -> None:
        """Commit what was taken some steps ago; where hosts have come or gone all workers go on from there.

        Raises:
            HostsUpdatedInterrupt: they have.
        """
        self._kept, self._saved_state = taken
        try:
            self.check_host_updates()
        except HostsUpdatedInterrupt:
            self.restore()
            raise

    def restore(self) -> None:
        """Go back to what was kept last."""
        for variable, value in zip(self._variables(), self._kept, strict=True):
            variable.assign(value)
        super().restore()
        self._copy_values()

    def sync(self) -> None:
        """Give all workers what rank 0 has now, and keep it."""
        self.save()  # Horovod would send the weights of now with the values of the last commit
        part, variables = distributed_part(self.optimizer), self._variables()
        with _deaths_told_to_horovod():
            broadcast_variables(part.shared(variables) if part else variables)
            super().sync()
        self.save()

    def _copy_values(self) -> None:
        """Part what is kept from the attributes: a list that grows in place would grow in both."""
        self._saved_state = copy.deepcopy(self._saved_state)

    def _variables(self) -> list[tf.Variable]:
        return [tensorflow_variable(v) for v in [*self.model.variables, *self.optimizer.variables]]

    def _read(self) -> list[np.ndarray]:
        return [np.array(variable.numpy()) for variable in self._variables()]


def run(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make `function(state, ...)` go on from the last commit when workers died, and from now when they joined.

    The function is called anew each time; it reads where to go on from `state`.
    """

    @functools.wraps(function)
    def attempt(state: Any, *args: Any, **kwargs: Any) -> Any:
        with _deaths_told_to_horovod():
            return function(state, *args, **kwargs)

    again: Callable[..., Any] = run_fn(attempt, _start_again)
    return again


@contextlib.contextmanager
def _deaths_told_to_horovod() -> Iterator[None]:
    """Turn TensorFlow's error into the one at which Horovod's loop goes back to the last commit."""
    try:
        yield
    except tf.errors.OpError as error:
        if "Horovod" in str(error.message):  # an exchange that a dead worker has left undone
            raise HorovodInternalError(error) from error
        raise


def _start_again() -> None:
    shutdown()
    forget_exchanges()
    hvd.init()
    shutdown_at_exit()


class CommitStateCallback(keras.callbacks.Callback):
    """Commits the state every so many batches of an epoch and at its end.

    The last batch alone makes no commit: training would go on from an epoch without batches. Where the length of an
    epoch is not known, a batch is therefore committed after the next one, which shows that it was not the last; all
    workers must have come so far. While gradients are accumulated nothing is committed: those that workers have
    gathered apart would be lost where another one joins.
    """

    def __init__(self, state: KerasState, batches_per_commit: int = 1) -> None:
        """Take the state and the batches between commits: more are cheaper, and lose more when a worker dies."""
        super().__init__()
        self.state = state
        self.batches_per_commit = batches_per_commit
        self._steps: int | None = None
        self._batches = self._considered = 0
        self._taken: tuple[list[np.ndarray], dict[str, Any]] | None = None

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        """Learn how long an epoch is: all workers commit at once."""
        self._steps = fewest(self.params.get("steps"))

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Count from here."""
        self._batches = self._considered = 0
        self._taken = None

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Commit when it is time to."""
        self._batches = batch + 1  # with steps_per_execution, several at once
        due = self._batches // self.batches_per_commit > self._considered // self.batches_per_commit
        due = due and self._is_updated()
        if due:
            self._considered = self._batches
        if self._steps is not None:
            if due and self._batches < self._steps:
                self.state.commit()
            return
        if self._taken is not None and _all_are_here():
            self.state.commit_taken(self._taken)
        self._taken = self.state.take() if due else None

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Commit, together with workers that have more batches."""
        meet("at the end of an epoch", self._batches)  # in the guard's words: either may come first
        self.state.commit()

    def _is_updated(self) -> bool:
        """Whether no gradient waits for an update."""
        optimizer: Any = distributed_part(self.state.optimizer) or self.state.optimizer
        steps = getattr(optimizer, "gradient_accumulation_steps", None)
        return not steps or int(tensorflow_variable(optimizer._iterations)) % int(steps) == 0


def _all_are_here() -> bool:
    """Whether all workers have just done a batch; one that waits at the end of its epoch counts as nothing."""
    if hvd.size() == 1:
        return True
    with watching("a commit"):
        return bool(hvd.allreduce(tf.constant(1), op=hvd.Sum) == hvd.size())


class UpdateBatchStateCallback(keras.callbacks.Callback):
    """Keeps in `state.batch` how many batches of the epoch are done; 0 between epochs. Put it before the commit."""

    def __init__(self, state: KerasState) -> None:
        """Take a state that has `batch`."""
        super().__init__()
        self.state = state
        self._before = 0

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Learn how many were done before this `fit`, which counts from 0."""
        self._before = self.state.batch

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Count; with steps_per_execution, several at once."""
        self.state.batch = self._before + batch + 1

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Start the next epoch at its first batch."""
        self.state.batch = 0


class UpdateEpochStateCallback(keras.callbacks.Callback):
    """Keeps in `state.epoch` how many epochs are done, over all restarts. Put it before the commit."""

    def __init__(self, state: KerasState) -> None:
        """Take a state that has `epoch`."""
        super().__init__()
        self.state = state

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Count, whatever number `fit` gives the epoch."""
        self.state.epoch += 1
