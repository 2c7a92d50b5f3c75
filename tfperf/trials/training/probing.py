"""A plan's loop seen from within: which examples it trains on, in which order, and how fast its steps are."""

import time
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfperf.training.plan import TrainingPlan

__all__ = ["Stopwatch", "seen_orders"]


class Recorder(keras.layers.Layer):  # type: ignore[misc]
    """Gives its input, and notes its numbers, one after the other."""

    def __init__(self, places: int) -> None:
        super().__init__()
        self.places = places

    def build(self, input_shape: Any) -> None:
        """Make room."""
        self.numbers = self.add_weight(shape=(self.places,), initializer="zeros", trainable=False)
        self.count = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False)

    def call(self, inputs: Any, training: bool = False) -> Any:
        """Note the inputs, (batch, 1)."""
        if training:
            rows = tf.shape(inputs)[0]
            places = tf.range(rows) + self.count
            self.numbers.assign(tf.tensor_scatter_nd_update(self.numbers.value, places[:, None], inputs[:, 0]))
            self.count.assign_add(rows)
        return inputs


class Stopwatch(keras.callbacks.Callback):  # type: ignore[misc]
    """Times an epoch from the end of its first call of TensorFlow to that of its last."""

    def __init__(self, trained: Sequence[int]) -> None:
        """Take the examples that the epoch has trained on at the end of each of its steps."""
        super().__init__()
        self._trained = trained
        self._ends: list[tuple[int, float, float]] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Look at the clock."""
        self._note(0)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Look at the clock."""
        self._note(batch + 1)

    def _note(self, steps: int) -> None:
        trained = self._trained[min(steps, len(self._trained)) - 1] if steps else 0  # Keras counts on past the end
        self._ends.append((trained, time.perf_counter(), time.process_time()))

    @property
    def seconds(self) -> float:
        """Seconds of the epoch, all of whose examples count as those after the first call, if there was another."""
        return self._scaled(1)

    @property
    def cpu_seconds(self) -> float:
        """The same in seconds of processors."""
        return self._scaled(2)

    def _scaled(self, clock: int) -> float:
        first, last = self._ends[min(1, len(self._ends) - 2)], self._ends[-1]
        return (last[clock] - first[clock]) * last[0] / (last[0] - first[0])


def seen_orders(plan: TrainingPlan, examples: int, batch_size: int, epochs: int) -> list[list[int]]:
    """The numbers of the examples that a plan's loop trains on, a list for each epoch, in their order.

    Args:
        plan: whose loop is looked at; a small model is trained by it on so many examples.
    """
    recorder = Recorder(examples * epochs)
    model = keras.Sequential([keras.Input((1,)), recorder, keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    numbers = np.arange(examples, dtype="float32")[:, None]
    loop = TrainingPlan(loop=plan.loop, steps_per_execution=plan.steps_per_execution, batch_size=batch_size)
    loop.apply(model, numbers[:batch_size]).optimizer.learning_rate = 0.0
    loop.fit(model, (numbers, numbers), epochs=epochs, verbose=0)
    seen = recorder.numbers.numpy().astype(int).tolist()
    return [seen[first : first + examples] for first in range(0, len(seen), examples)]
