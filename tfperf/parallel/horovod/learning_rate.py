"""The learning rate of training on many ranks: warm-up to a larger one, and a schedule by epochs."""

from collections.abc import Callable
from typing import Any

import horovod.tensorflow as hvd
import keras

__all__ = ["LearningRateScheduleCallback", "LearningRateWarmupCallback"]


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
            steps_per_epoch: batches of an epoch, where Keras does not know them.

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
        self._epoch = 0

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        """Learn how long an epoch is.

        Raises:
            ValueError: that is not known and needed.
        """
        if not self.staircase and self.steps_per_epoch is None:
            self.steps_per_epoch = self.params.get("steps")
            if self.steps_per_epoch is None:
                raise ValueError("expected an epoch of known length, this one is unknown; pass steps_per_epoch=")

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Set the rate of a staircase."""
        self._epoch = epoch
        if self.staircase and self._is_on():
            self._set(self.initial_lr * self.multiplier(epoch))

    def on_train_batch_begin(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Set the rate of a ramp."""
        if not self.staircase and self.steps_per_epoch and self._is_on():
            self._set(self.initial_lr * self.multiplier(self._epoch + batch / self.steps_per_epoch))

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
        ended = epoch + 1 / (self.steps_per_epoch or 1)  # counts the batch about to be trained: the last is at 1
        size: int = hvd.size()
        return (1 + ended * (size - 1) / self.warmup_epochs) / size

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Say on rank 0 that the rate has arrived."""
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
