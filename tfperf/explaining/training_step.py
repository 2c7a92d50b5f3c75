"""What a step of training waits for: forward, backward, the optimizer, Python, or its input."""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfperf.errors import HardwareError
from tfperf.explaining.explanation import StepPart, TrainingStep
from tfperf.exports.keras_nets import restoring
from tfperf.exports.servable import Servable
from tfperf.measure import Progress, compare
from tfperf.measure.words import format_seconds
from tfperf.training.examples import is_arrays
from tfperf.training.optimizers import fast_optimizer, is_fast, why_not_fast

__all__ = ["explain_step", "step_words"]

FIT_SECONDS = 0.3
"""What a call of fit takes at least: it begins with work that an epoch has once."""

FEWEST_STEPS, MOST_STEPS = 4, 500
"""Steps of a call of fit."""

RANDOM_BYTES = 2**26
"""Size of the random inputs that lie in memory, unless a batch has more."""

ROUNDS = 12

LARGE = 0.15
"""Share of a step from which a part is worth a technique."""

ADVICE = {
    "forward": "mixed precision, where the processor has arithmetic for it, and fuse",
    "backward, activations": "mixed precision, where the processor has arithmetic for it, and fuse",
    "backward, weights": "fuse, which computes the gradients of some kernels as convolutions forward",
    "optimizer": "fast_optimizer, which reads and writes each weight once",
    "Python": "fit of tfperf.training, by XLA for nets without convolutions, or steps_per_execution",
    "input": "the recipe input_pipeline; for examples in memory fit of tfperf.training",
}
"""Part -> what makes it shorter: functions are those of `tfperf.training`."""


def explain_step(
    servable: Servable,
    batch: int,
    data: Any = None,
    *,
    time_limit: float = 20.0,
    on_progress: Callable[[Progress], None] | None = None,
) -> TrainingStep:
    """Take a training step apart, by measuring steps that do more and more of it, in turns.

    The loss is the mean of squares of all outputs, which adds nearly no work. Activations: the gradients of the first
    layer's weights alone, for which those of all later activations are computed. Python: fit with a batch that lies
    ready, beside the step alone. Input: fit with the data, beside that.

    Args:
        servable: of a Keras model; one that is compiled has its own optimizer, else it is Adam.
        batch: examples of a step.
        data: (x, y) as arrays, or a `tf.data.Dataset` of batches, whose inputs the model takes; None: random inputs.
        time_limit: seconds of measuring, unless twelve rounds take longer.
        on_progress: is told how far the measuring is.

    Raises:
        HardwareError: it is no Keras model, or has no weights to train.
        ValueError: the batches of data are of another size, or its examples are fewer than one batch.
    """
    net = servable.net
    if net is None or not net.trainable_variables:
        raise HardwareError(f"expected a Keras model with weights to train; '{servable.name}' is none")
    steps = _Steps(net, servable)
    ready = tuple(tf.constant(array) for array in servable.signature.random_inputs(batch))
    with restoring(net):
        count = _steps_of_fit(lambda: steps.train(*ready))
        works = {
            "forward": _repeated(steps.forward, ready, count),
            "backward, activations": _repeated(steps.activations, ready, count),
            "backward, weights": _repeated(steps.gradients, ready, count),
            "optimizer": _repeated(steps.train, ready, count),
            "Python": _fit(steps, tf.data.Dataset.from_tensors(ready).repeat(count)),
            "input": _fit(steps, _batches_of(data, servable, batch, count).repeat().take(count)),
        }
        found = compare(works, time_limit=time_limit, min_rounds=ROUNDS, seed=0, on_progress=on_progress)
    parts, before, width_before = [], 0.0, 0.0
    for name in works:
        seconds, low, high = (value / count for value in found[name].interval)
        width = (high - low) / 2
        parts.append(
            StepPart(name=name, seconds=max(0.0, seconds - before), half_width=math.hypot(width, width_before))
        )
        before, width_before = max(before, seconds), width
    may_be_fast = why_not_fast(steps.optimizer) is None and not is_fast(steps.optimizer)
    return TrainingStep(seconds=before, parts=tuple(parts), may_be_fast=may_be_fast)


def step_words(step: TrainingStep) -> list[str]:
    """What a step waits for, and what would help: a sentence each."""
    longest = sorted(step.parts, key=lambda part: -part.seconds)
    shares = ", ".join(f"{part.name} {step.share(part):.0%}" for part in longest)
    lines = [f"a step of fit takes {format_seconds(step.seconds)} and waits for: {shares}"]
    told: set[str] = set()
    for part in longest:
        helps = part.name != "optimizer" or step.may_be_fast
        if helps and step.share(part) >= LARGE and part.seconds > part.half_width and ADVICE[part.name] not in told:
            lines.append(f"{part.name}: {ADVICE[part.name]}")
            told.add(ADVICE[part.name])
    return lines


class _Steps:
    """Steps that do more and more of a model's training, each as one function of TensorFlow."""

    def __init__(self, net: keras.Model, servable: Servable) -> None:
        self.net, self._pack = net, servable.pack
        kept = getattr(net, "optimizer", None)
        self.optimizer = _at_rest(kept if kept is not None else keras.optimizers.Adam())
        self.optimizer.build(net.trainable_variables)
        self.forward = tf.function(self._loss)
        self.activations = tf.function(lambda *tensors: self._gradients(tensors, net.trainable_variables[:1]))
        self.gradients = tf.function(lambda *tensors: self._gradients(tensors, net.trainable_variables))
        self.train = tf.function(self.train_once)

    def train_once(self, *tensors: Any) -> Any:
        """Do all of a step."""
        loss, *gradients = self._gradients(tensors, self.net.trainable_variables)
        self.optimizer.apply(gradients, self.net.trainable_variables)
        return loss

    def _loss(self, *tensors: Any) -> Any:
        outputs = keras.tree.flatten(self.net(*self._pack(tensors), training=True))
        floats = [output for output in outputs if output.dtype.is_floating]
        return tf.add_n([tf.reduce_mean(tf.square(tf.cast(output, tf.float32))) for output in floats])

    def _gradients(self, tensors: Any, variables: Any) -> list[Any]:
        values = [variable.value for variable in variables]
        with tf.GradientTape() as tape:
            loss = self._loss(*tensors)
        return [loss, *tape.gradient(loss, values, unconnected_gradients=tf.UnconnectedGradients.ZERO)]


def _at_rest(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """A new optimizer that does what another does, as fast, at the rate 0: the weights stay where they are.

    One of Keras that is distributed becomes a plain one: no other rank is asked to take part.
    """
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        growth = {"initial_scale": optimizer.initial_scale, "dynamic_growth_steps": optimizer.dynamic_growth_steps}
        return keras.optimizers.LossScaleOptimizer(_at_rest(optimizer.inner_optimizer), **growth)
    saved = keras.optimizers.serialize(optimizer)
    is_keras = saved["module"] == "keras.optimizers"  # fast and distributed ones too: that is how they are saved
    kind = getattr(keras.optimizers, saved["class_name"]) if is_keras else type(optimizer)
    made = kind.from_config(optimizer.get_config() | {"learning_rate": 0.0})
    return fast_optimizer(made) if is_fast(optimizer) else made


class _Fitted(keras.Model):  # type: ignore[misc]
    """A model whose step of fit is a given one, so that fit adds nothing but what is fit's own."""

    def __init__(self, steps: _Steps) -> None:
        super().__init__()
        self._steps = [steps.train_once]  # within a list, past Keras, which tracks what is assigned

    def call(self, inputs: Any) -> Any:
        """Give the input; nothing calls it."""
        return inputs

    def train_step(self, data: Any) -> Any:
        """Train for a step."""
        return {"loss": self._steps[0](*data)}


def _repeated(step: Callable[..., Any], tensors: tuple[Any, ...], times: int) -> Callable[[], Any]:
    def repeated() -> Any:
        for _ in range(times):
            found = step(*tensors)
        return found

    return repeated


def _steps_of_fit(step: Callable[[], Any]) -> int:
    """Steps for a call of fit, by what one takes after it was traced."""
    step()
    began = time.perf_counter()
    np.asarray(step())
    seconds = time.perf_counter() - began
    return min(max(FEWEST_STEPS, math.ceil(FIT_SECONDS / max(seconds, 1e-6))), MOST_STEPS)


def _fit(steps: _Steps, batches: Any) -> Callable[[], Any]:
    model = _Fitted(steps)
    model.compile(jit_compile=False)
    return lambda: model.fit(batches, shuffle=False, verbose=0)


def _batches_of(data: Any, servable: Servable, batch: int, steps: int) -> Any:
    """The inputs of data, in batches of flat tuples of tensors; examples in memory are shuffled, as fit does.

    Args:
        data, servable, batch: as `explain_step` takes them.
        steps: of a call of fit.

    Raises:
        ValueError: the batches are of another size, or the examples in memory are fewer than one batch.
    """
    if data is not None and not is_arrays(data):
        batches = data.map(lambda x, *_: _in_order(x, servable))
        sizes = [len(arrays[0]) for arrays in batches.take(1)]
        if sizes != [batch]:
            received = f"data in batches of {sizes[0]}" if sizes else "data without any"
            raise ValueError(f"expected batches of {batch}, as is asked for. Received: {received}")
        return batches
    if data is None:
        rows = batch * max(1, min(MOST_STEPS, RANDOM_BYTES // _bytes_of(servable, batch)))
        arrays = tuple(servable.signature.random_inputs(rows))
    else:
        arrays = _in_order(data[0], servable)
    rows = len(arrays[0])
    if rows < batch:
        raise ValueError(f"expected {batch} examples or more. Received: {rows}")
    return _shuffled([tf.convert_to_tensor(array) for array in arrays], rows, batch, steps)


def _shuffled(tensors: list[Any], rows: int, batch: int, steps: int) -> Any:
    """Batches of what lies in memory, gathered by places in a new order, as Keras feeds arrays to fit.

    Keras shuffles all places once in an epoch. A call of a few steps shuffles only as many places as it takes, from
    anywhere among all: the shuffle then has the same share of a step as in an epoch.
    """
    full = min(rows // batch, steps)
    everywhere = tf.random.shuffle(tf.range(rows, dtype=tf.int64))

    def places(_: Any) -> Any:
        begin = tf.random.uniform([], maxval=rows - full * batch + 1, dtype=tf.int64)
        order = tf.random.shuffle(everywhere[begin : begin + full * batch])
        return tf.data.Dataset.from_tensor_slices(tf.reshape(order, [full, batch]))

    def examples(at: Any) -> Any:
        return tuple(tf.gather(tensor, at) for tensor in tensors)

    batches = tf.data.Dataset.range(1).flat_map(places).map(examples, num_parallel_calls=tf.data.AUTOTUNE)
    return batches.prefetch(tf.data.AUTOTUNE)


def _in_order(x: Any, servable: Servable) -> tuple[Any, ...]:
    """The inputs of data in the order of the signature: by their names, where the net has them, else as Keras does it.

    Keras sorts the keys of a dictionary, while the inputs of a model may be a list in another order.
    """
    names = [getattr(one, "name", None) for one in getattr(servable.net, "inputs", None) or ()]
    by_name = isinstance(x, Mapping) and len(names) == len(x) and set(x) == set(names)
    return tuple(keras.tree.flatten([x[name] for name in names] if by_name else x))


def _bytes_of(servable: Servable, batch: int) -> int:
    return sum(int(array.nbytes) for array in servable.signature.random_inputs(batch))
