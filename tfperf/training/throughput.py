"""`Throughput`: a callback that measures training while it runs."""

import math
import operator
from array import array
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from pydantic import Field

from tfperf.measure.clock import Clock, Synchronizer, device_synchronizer, wall_clock
from tfperf.measure.memory import MemoryPeak, PeakMemory
from tfperf.measure.statistics import samples_needed
from tfperf.measure.value import Count, Value
from tfperf.measure.words import format_bytes, format_seconds

__all__ = ["EpochThroughput", "Throughput"]

LOGGED = (
    "examples_per_second",
    "steps_per_second",
    "step_seconds",
    "outside_share",
    "ceiling_share",
    "peak_memory_bytes",
)
"""The scalars that the logs of an epoch have. Percentiles are not among them: few epochs have enough calls for p99."""

SCALAR = tf.compat.v1.SummaryMetadata(plugin_data={"plugin_name": "scalars"}, data_class="DATA_CLASS_SCALAR")
"""By this TensorBoard knows a scalar. `tf.summary.scalar` writes the same, but fails where TensorBoard is missing."""


class EpochThroughput(Value):
    """What one epoch of training reached, without its validation and without the first call of the training.

    Its time begins with the epoch, or with the end of the first call, and ends with the last step.
    """

    epoch: Count = Field(description="the first is 0")
    steps: Count
    examples: Count | None = Field(description="in these steps; None: not known")
    seconds: float = Field(ge=0, description="the steps, and what is outside of them")
    outside_seconds: float = Field(ge=0, description="before and between the steps: callbacks and Python")
    step_seconds: float | None = Field(ge=0, description="median of the steps; None: there was no step")
    step_seconds_p95: float | None = Field(ge=0, description="None: fewer than 130 calls, which cannot speak of it")
    step_seconds_p99: float | None = Field(ge=0, description="None: fewer than 662 calls, which cannot speak of it")
    flops_per_step: float | None = Field(gt=0, description="floating-point operations; None: not known, as the next")
    ceiling_flops: float | None = Field(gt=0, description="floating-point operations a second")
    memory: MemoryPeak = Field(description="from the beginning of the training on")

    @property
    def steps_per_second(self) -> float | None:
        """Steps a second; None: there was no step."""
        return self._per_second(self.steps)

    @property
    def examples_per_second(self) -> float | None:
        """Examples a second; None: there was no step, or their number is not known."""
        return None if self.examples is None else self._per_second(self.examples)

    @property
    def outside_share(self) -> float | None:
        """Share of the time that is outside of the steps, 0 to 1; None: there was no step."""
        return self._per_second(self.outside_seconds)

    @property
    def flops_per_second(self) -> float | None:
        """Floating-point operations a second; None: there was no step, or `flops_per_step` is not known."""
        return None if self.flops_per_step is None else self._per_second(self.flops_per_step * self.steps)

    @property
    def ceiling_share(self) -> float | None:
        """Share of `ceiling_flops` that was reached; None: there was no step, or the ceiling is not known."""
        rate = self.flops_per_second
        return None if rate is None or self.ceiling_flops is None else rate / self.ceiling_flops

    @property
    def scalars(self) -> dict[str, float]:
        """The numbers by name, without those that need what is not known; NaN: the epoch is too short for this one."""
        numbers = {
            "examples_per_second": self.examples_per_second,
            "steps_per_second": self.steps_per_second,
            "step_seconds": self.step_seconds,
            "step_seconds_p95": self.step_seconds_p95,
            "step_seconds_p99": self.step_seconds_p99,
            "outside_share": self.outside_share,
            "flops_per_second": self.flops_per_second,
            "ceiling_share": self.ceiling_share,
            "peak_memory_bytes": float(self.memory.resident),
        }
        needs = {
            "examples_per_second": self.examples,
            "flops_per_second": self.flops_per_step,
            "ceiling_share": self.ceiling_flops,
        }
        return {
            name: math.nan if number is None else number
            for name, number in numbers.items()
            if needs.get(name, 0) is not None
        }

    def _per_second(self, amount: float) -> float | None:
        return amount / self.seconds if self.steps and self.seconds else None

    def __str__(self) -> str:
        name = f"epoch {self.epoch + 1}"
        if self.step_seconds is None:
            return f"{name}: no step but those of the first call"
        tails = (("p95", self.step_seconds_p95), ("p99", self.step_seconds_p99))
        known = ", ".join(f"{which} {format_seconds(seconds)}" for which, seconds in tails if seconds is not None)
        shares = ((self.outside_share, "outside of the steps"), (self.ceiling_share, "of the ceiling"))
        parts = [
            _rate(self.examples_per_second, "examples/s") or _rate(self.steps_per_second, "steps/s"),
            f"{format_seconds(self.step_seconds)} a step{f' ({known})' if known else ''}",
            *(f"{share:.1%} {what}" for share, what in shares if share is not None),
            f"at most {format_bytes(self.memory.resident)}",
        ]
        return f"{name}: {', '.join(filter(None, parts))}"


class Throughput(keras.callbacks.Callback):  # type: ignore[misc]
    """Measure training while it runs: examples a second, step times, time outside of the steps, memory.

    For `fit` of Keras and of `tfperf.training`. It adds its numbers to the logs of each epoch, where `History` and the
    callbacks after it find them, and keeps them in `epochs`. Put it before the other callbacks.

    A step is timed from `on_train_batch_begin` to `on_train_batch_end`. By then Keras has read the logs, and the
    callback waits until the devices are done: a GPU has no next step at hand meanwhile, which costs less the more steps
    a call makes. Keras takes the batch from its input within the step, so slow input makes slow steps; outside of the
    steps are callbacks and Python. A call of several steps, as with `steps_per_execution`, counts as so many steps of
    its mean time. The first call of a training, which traces the model, is in no epoch.

    Examples are those that Keras's own `train_step` counts, by all replicas of this process. Where a model has a
    `train_step` of its own, or a callback calls `model.evaluate` within an epoch, there is no such count: give
    `batch_size`.

    Args:
        batch_size: examples that a step counts as; the last step of an epoch counts as fewer where Keras counts fewer.
            None: Keras's count alone, and where there is none, steps a second alone.
        flops_per_step: floating-point operations of a step, forward and backward, a multiply-add as two; None: not
            known.
        ceiling_flops: floating-point operations a second that this machine can give, as `tfperf hardware` measures
            them; None: not known.
        log_dir: a folder, where the numbers of each epoch are written as scalars for TensorBoard; None: nowhere.
        clock: returns seconds.

    Attributes:
        epochs: an `EpochThroughput` for each epoch of the last training.
        first_step_seconds: the seconds of the first call of the last training; None: there was none.

    Raises:
        ValueError: a number is not above 0 and finite, or `ceiling_flops` comes without `flops_per_step`.
    """

    def __init__(
        self,
        *,
        batch_size: int | None = None,
        flops_per_step: float | None = None,
        ceiling_flops: float | None = None,
        log_dir: Path | str | None = None,
        clock: Clock = wall_clock,
    ) -> None:
        super().__init__()
        numbers: dict[str, float | None] = {
            "batch_size": batch_size,
            "flops_per_step": flops_per_step,
            "ceiling_flops": ceiling_flops,
        }
        for name, number in numbers.items():
            if number is not None and not 0 < number < math.inf:
                raise ValueError(f"expected a number above 0. Received: {name}={number}")
        if ceiling_flops is not None and flops_per_step is None:
            raise ValueError(f"expected flops_per_step too. Received: ceiling_flops={ceiling_flops} alone")
        self._batch_size = None if batch_size is None else operator.index(batch_size)
        self._flops_per_step = None if flops_per_step is None else float(flops_per_step)
        self._ceiling_flops = None if ceiling_flops is None else float(ceiling_flops)
        self._log_dir, self._clock = log_dir, clock
        self._writer: Any = None
        self.epochs: tuple[EpochThroughput, ...] = ()
        self.first_step_seconds: float | None = None
        self._began = self._ended = self._stopped = 0.0  # when a call began, the last one ended, a validation began
        self._begin_epoch()

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        """Forget the last training, and watch the memory from now on."""
        self.epochs, self.first_step_seconds = (), None
        self._writer = None if self._log_dir is None else tf.summary.create_file_writer(str(self._log_dir))
        self._wait: Synchronizer = device_synchronizer()
        self._memory = PeakMemory()

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Begin to count."""
        self._begin_epoch()

    def on_train_batch_begin(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Begin the call whose first step has this number."""
        self._begin, self._began = batch, self._clock()

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """End the call whose last step has this number."""
        self._wait()
        now = self._clock()
        seconds, outside, self._ended = now - self._began, self._began - self._ended, now
        steps = self._steps_of_call(batch)
        self._done += steps
        self._is_counted = False
        if self.first_step_seconds is None:
            self.first_step_seconds = seconds
            self._count_examples()
            self._examples = 0
            return
        self._outside += outside
        self._seconds.append(seconds)
        self._steps.append(steps)
        if self._total is None or batch + 1 >= self._total:
            self._count_examples()  # now, as another callback may evaluate at the end of the epoch

    def on_test_begin(self, logs: dict[str, float] | None = None) -> None:
        """Stop the clock for a validation."""
        self._stopped = self._clock()
        self._count_examples()

    def on_test_end(self, logs: dict[str, float] | None = None) -> None:
        """Let the clock go on."""
        self._counted = _counted_examples(self.model)
        self._ended += self._clock() - self._stopped

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Keep what was measured, and add it to the logs in place."""
        self._count_examples()
        measured = self._measured(epoch)
        self.epochs += (measured,)
        if logs is not None:
            logs.update({name: number for name, number in measured.scalars.items() if name in LOGGED})
        if self._writer is not None:
            with self._writer.as_default():
                for name, number in measured.scalars.items():
                    if not math.isnan(number):
                        tf.summary.write(f"throughput/{name}", tf.constant(number, tf.float32), epoch, SCALAR)
            self._writer.flush()

    def on_train_end(self, logs: dict[str, float] | None = None) -> None:
        """Close what TensorBoard reads."""
        if self._writer is not None:
            self._writer.close()

    def __str__(self) -> str:
        if not self.epochs:
            return "no epoch yet"
        first = "" if self.first_step_seconds is None else f"; first call {format_seconds(self.first_step_seconds)}"
        return f"{self.epochs[-1]}{first}"

    def _begin_epoch(self) -> None:
        self._seconds, self._steps = array("d"), array("q")  # of each call; there may be millions
        self._done, self._outside, self._examples, self._is_counted = 0, 0.0, 0, True
        self._total: int | None = (self.params or {}).get("steps")
        self._counted, self._updates = _counted_examples(self.model), _updates(self.model)
        self._ended = self._clock()

    def _steps_of_call(self, last: int) -> int:
        """How many steps a call made that was to end with step number `last`.

        The last call of an epoch makes fewer steps where the input ends, but not where `steps_per_epoch` does. The
        optimizer knows, unless it left updates out because they were not finite.
        """
        most = last + 1 - self._begin
        if most == 1 or (self._total is not None and last < self._total):
            return most
        updates = _updates(self.model)
        if updates is not None and self._updates is not None:
            made = updates - self._updates - self._done
            if 1 <= made <= most:
                return made
        return most if self._total is None else max(1, self._total - self._begin)

    def _count_examples(self) -> None:
        """Add what Keras has counted since it was looked at last, once after a call."""
        if self._is_counted:
            return
        before, self._counted, self._is_counted = self._counted, _counted_examples(self.model), True
        if before is not None and self._counted is not None:
            self._examples += self._counted - before

    def _measured(self, epoch: int) -> EpochThroughput:
        calls, steps = np.array(self._seconds), np.array(self._steps)
        times = np.repeat(calls / steps, steps)  # (steps of the epoch,)

        def percentile(percent: float) -> float | None:
            return float(np.percentile(times, percent)) if len(calls) >= samples_needed(percent) else None

        return EpochThroughput(
            epoch=epoch,
            steps=len(times),
            examples=self._examples_in(len(times)),
            seconds=float(calls.sum()) + self._outside,
            outside_seconds=self._outside,
            step_seconds=float(np.median(times)) if len(times) else None,
            step_seconds_p95=percentile(95),
            step_seconds_p99=percentile(99),
            flops_per_step=self._flops_per_step,
            ceiling_flops=self._ceiling_flops,
            memory=self._memory.read(),
        )

    def _examples_in(self, steps: int) -> int | None:
        counted = self._examples if self._counted is not None and self._examples >= steps else None
        if self._batch_size is None:
            return counted
        whole = steps * self._batch_size
        return counted if counted is not None and whole - self._batch_size < counted <= whole else whole


def _rate(rate: float | None, unit: str) -> str:
    if rate is None:
        return ""
    return f"{rate:,.0f} {unit}" if rate >= 100 else f"{rate:.3g} {unit}"


def _counted_examples(model: Any) -> int | None:
    """How many examples Keras has counted since its metrics were reset; None: the `train_step` is not Keras's."""
    if getattr(type(model), "train_step", None) is not keras.Model.train_step or model._loss_tracker is None:
        return None
    return round(float(tf.convert_to_tensor(model._loss_tracker.count.value)))


def _updates(model: Any) -> int | None:
    """How many steps the optimizer has made, those that only accumulate gradients too; None: there is none."""
    optimizer = getattr(model, "optimizer", None)
    while isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = optimizer.inner_optimizer
    return None if optimizer is None else int(tf.convert_to_tensor(optimizer._iterations.value))
