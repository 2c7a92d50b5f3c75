"""The process in which one training plan runs: `python -m tfperf.trials.training.worker`."""

import gc
import os
from collections.abc import Iterable
from functools import cached_property
from itertools import accumulate
from typing import Any

from tfperf.errors import EngineError
from tfperf.importing import KERAS_CAN_DO_WITHOUT, absent, no_collections
from tfperf.measure.memory import PeakMemory
from tfperf.trials.worker import serve

__all__ = ["TrainingWorker", "main"]

PROBED_EXAMPLES, PROBED_BATCH = 14, 4
"""An epoch of three batches and a smaller one."""


class TrainingWorker:
    """Answers requests about one training plan."""

    _plan: Any
    _task: Any
    _model: Any

    def __init__(self) -> None:
        self._peak = PeakMemory()
        self._measured: Any = None

    @no_collections()
    def open(self, plan: str, model: str, data: str) -> dict[str, Any]:
        """Make the plan real: build the model with the first seed, and change it.

        Returns:
            What shows that the plan took effect, the changes that other plans cannot make with this model, and why.
        """
        with absent(*KERAS_CAN_DO_WITHOUT):
            import tensorflow as tf
        from tfperf.training.examples import is_arrays
        from tfperf.training.fusing import BATCH_SIZE
        from tfperf.training.plan import CHANGES, LOOPS, TrainingPlan
        from tfperf.trials.training.task import TrainingTask

        self._plan = TrainingPlan.model_validate_json(plan)
        if self._plan.threads is not None:
            tf.config.threading.set_intra_op_parallelism_threads(self._plan.threads)
        self._task = TrainingTask(model, data)
        self._model = self._task.build(0)
        arrays = is_arrays(self._task.data)
        if not arrays and not LOOPS[self._plan.loop].takes_datasets:
            raise EngineError(f"the {LOOPS[self._plan.loop].words} takes arrays, and the data are a tf.data.Dataset")
        if not arrays and self._plan.batch_size is not None:
            raise EngineError(f"the data come in batches of {self._task.dataset_batch_size}; ask for no batch size")
        batch_size = self._plan.batch_size or self._task.dataset_batch_size or BATCH_SIZE
        self._batch_size = batch_size
        why_not = {name: change.why_not(self._model) for name, change in CHANGES.items()}
        self._plan.apply(self._model, self._task.batch(batch_size))
        self._start = _values(self._state())  # now: whatever the plan does to the weights, or to the rate, is checked
        return {
            "proof": self._proof(tf),
            "why_not": {name: why for name, why in why_not.items() if why},
            "is_arrays": arrays,
            "has_weights": arrays and len(self._task.data) == 3,
            "reshaped": self._task.reshaped,
            "batch_size": batch_size,
            "steps_per_epoch": self._task.steps_per_epoch(batch_size),
            "name": self._model.name,
            "compiled": self._task.compiled,
        }

    def order(self) -> None:
        """Check that the plan's loop trains on each example once an epoch, in another order each time.

        Raises:
            EngineError: it does not.
        """
        from tfperf.trials.training.probing import seen_orders

        if self._task.dataset_batch_size is not None:
            return  # their order is that of the user's pipeline
        orders = seen_orders(self._plan, PROBED_EXAMPLES, PROBED_BATCH, epochs=2)
        for order in orders:
            if sorted(order) != list(range(PROBED_EXAMPLES)):
                raise EngineError(f"expected each example once an epoch. Received: the examples {order}")
        if sorted(orders[0]) == orders[0] or orders[0] == orders[1]:
            raise EngineError("expected another order of the examples in each epoch. Received: the same")

    def course(self, seed: int, segments: int, steps: int) -> dict[str, Any]:
        """Train the first steps anew, and give the course of the loss.

        Args:
            seed: of weights and of the order of the examples.
            segments: losses that are told.
            steps: of each segment.
        """
        import keras
        import numpy as np

        self._restart(seed)
        kernels = _numbered(one for one in self._model.trainable_variables if len(one.shape) > 1)
        statistics = _numbered(one for one in self._model.non_trainable_variables if one.dtype.startswith("float"))
        watched = kernels | statistics
        before = dict(zip(watched, _values(watched.values()), strict=True))
        examples = self._task.examples(self._batch_size, segments * steps, seed)
        rows = self._batch_size * steps
        losses = []
        for first in range(0, segments * rows, rows):
            segment = keras.tree.map_structure(lambda array, first=first: array[first : first + rows], examples)
            losses.append(self._losses_of(segment))
        ways = {name: float(np.linalg.norm(one.numpy() - before[name])) for name, one in watched.items()}
        return {
            "losses": [_finite(loss) for loss in losses],
            "moved": {name: _finite(ways[name]) for name in kernels},
            "statistics": {name: _finite(ways[name]) for name in statistics},
        }

    def prepare(self, examples: int) -> int:
        """Get so many examples ready that `timed` trains on; how many there are."""
        import keras

        if self._task.dataset_batch_size is None:
            first = keras.tree.flatten(self._task.data)[0]
            examples = min(examples, len(first))
            self._measured = keras.tree.map_structure(lambda array: array[:examples], self._task.data)
            whole, rest = divmod(examples, self._batch_size)
            sizes = [self._batch_size] * whole + [rest] * (rest > 0)
        else:
            self._measured, sizes = self._task.measured(-(-examples // self._batch_size))
        self._trained = list(accumulate(sizes))
        return self._trained[-1]

    def timed(self, calls: int) -> dict[str, float]:
        """Seconds, and seconds of processors, of so many epochs over what was prepared.

        An epoch is timed from the end of its first call of TensorFlow on, and counted as if all were like that: `fit`
        begins with work that an epoch of the whole data has once, too.

        Raises:
            EngineError: the loss is no longer finite.
        """
        from tfperf.trials.training.probing import Stopwatch

        gc.collect()
        seconds = cpu_seconds = 0.0
        for _ in range(calls):
            watch = Stopwatch(self._trained)
            loss = self._losses_of(self._measured, shuffle=True, callbacks=[watch])
            seconds += watch.seconds
            cpu_seconds += watch.cpu_seconds
        if _finite(loss) is None:
            raise EngineError("its loss is not finite after some more training")
        return {"seconds": seconds, "cpu_seconds": cpu_seconds}

    def step(self) -> None:
        """Train for one batch, so that the threads are where they stay."""
        self._losses_of(self._one_batch)

    def memory(self) -> str:
        """The most memory since the start."""
        return self._peak.read().model_dump_json()

    @cached_property
    def _one_batch(self) -> Any:
        return self._task.examples(self._batch_size, 1, 0)

    def _losses_of(self, data: Any, **options: Any) -> float:
        """The mean loss of an epoch over data."""
        if self._task.dataset_batch_size is not None and isinstance(data, tuple):
            import tensorflow as tf

            data = tf.data.Dataset.from_tensor_slices(data).batch(self._batch_size)
        history = self._plan.fit(self._model, data, **{"shuffle": False, "verbose": 0} | options)
        return float(history.history["loss"][-1])

    def _state(self) -> list[Any]:
        """Everything that training changes."""
        return [*self._model.variables, *self._model.optimizer.variables]

    def _restart(self, seed: int) -> None:
        """Put everything back to where it is before training, with the weights of a seed."""
        for variable, value in zip(self._state(), self._start, strict=True):
            variable.assign(value)
        if seed:
            self._model.set_weights(self._task.build(seed).get_weights())

    def _proof(self, tf: Any) -> dict[str, str]:
        types = sorted({layer.compute_dtype for layer in self._model._flatten_layers()} - {None})
        classes = sorted({type(layer).__name__ for layer in self._model._flatten_layers()})
        return {
            "computes in": ", ".join(types),
            "layers": ", ".join(classes)[:1000],
            "optimizer": " and ".join(kind.__name__ for kind in type(self._model.optimizer).__mro__[:2]),
            "XLA": str(bool(self._model.jit_compile)),
            "threads": str(tf.config.threading.get_intra_op_parallelism_threads() or "as TensorFlow takes by itself"),
        } | {name: os.environ.get(name, "") for name in self._plan.environment}


def _numbered(variables: Iterable[Any]) -> dict[str, Any]:
    """Variables by names that are the same in every process: Keras numbers layers through the whole of one."""
    return {f"{number} ({one.name})": one for number, one in enumerate(variables, start=1)}


def _values(variables: Iterable[Any]) -> list[Any]:
    """Copies: what `numpy` gives is the memory of the variable itself, which some operations write to in place."""
    return [variable.numpy().copy() for variable in variables]


def _finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None


def main() -> None:
    """Answer requests about a training plan until they end."""
    serve(TrainingWorker())


if __name__ == "__main__":
    main()
