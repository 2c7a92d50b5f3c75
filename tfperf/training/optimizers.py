"""Keras's optimizers with one operation for each variable in place of some twenty."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfperf.exports.keras_nets import PLAIN_CLASS
from tfperf.training.saved_form import with_class

__all__ = ["fast_optimizer", "innermost", "is_fast", "why_not_fast"]

EXACT_TYPES = (tf.float32, tf.float64)
"""Types of weights that one operation updates. In bfloat16 it would round the decay 0.999 of Adam to 1."""


def fast_optimizer(optimizer: keras.optimizers.Optimizer | str) -> keras.optimizers.Optimizer:
    """Have an optimizer update each variable by one operation of TensorFlow, with Keras's formulas and states.

    Keras writes an update of Adam as some twenty operations, each of which reads and writes the whole variable.
    TensorFlow's own reads and writes it once. Weight decay, clipping, averages of weights, accumulation, loss scales
    and schedules stay Keras's. So do weights in half precision, as under the policy "bfloat16", and embeddings under
    SGD without momentum, of which few rows change. What is saved is Keras's optimizer.

    `fit` of `tfperf.training` takes notice of it at any time. Keras's `fit` keeps what it has traced: use this before
    the first `fit`, or set `model.train_function = None` afterwards.

    Args:
        optimizer: Adam, AdamW or SGD, or what they are called; a LossScaleOptimizer of one, and one that is distributed
            by `tfperf.parallel.horovod`. It is changed in place.

    Returns:
        The same optimizer.

    Raises:
        TypeError: no Keras optimizer.
        ValueError: one of another kind, or Adam with `amsgrad`: there is no such operation.
    """
    optimizer = keras.optimizers.get(optimizer)
    inner = innermost(optimizer)
    if is_fast(inner):
        return optimizer
    if why := why_not_fast(optimizer):
        raise ValueError(why)
    kind = type(inner)
    fast = _fast_kind(kind)
    saved = keras.optimizers.serialize(inner)["module"] or kind.__module__
    names = {"__module__": saved, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__, PLAIN_CLASS: kind}
    with_class(inner, type(kind.__name__, (fast, kind), names))
    return optimizer


def why_not_fast(optimizer: keras.optimizers.Optimizer) -> str | None:
    """Why `fast_optimizer` refuses an optimizer; None: it does not."""
    inner = innermost(optimizer)
    amsgrad = getattr(inner, "amsgrad", False)
    if is_fast(inner) or (_fast_kind(type(inner)) is not None and not amsgrad):
        return None
    return f"expected Adam, AdamW or SGD, without amsgrad. Received: {type(inner).__name__}{' with amsgrad' * amsgrad}"


def is_fast(optimizer: keras.optimizers.Optimizer) -> bool:
    """Whether `fast_optimizer` has changed an optimizer already."""
    return isinstance(innermost(optimizer), _Fast)


def innermost(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """The optimizer that updates the weights: what a LossScaleOptimizer holds, else the optimizer itself."""
    while isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = optimizer.inner_optimizer
    return optimizer


def _fast_kind(kind: Any) -> Any:
    """The class that is put before an optimizer's; None: there is none for it."""
    return next((fast for plain, fast in _KINDS.items() if kind.update_step is plain.update_step), None)


class _Fast:
    """What a fast optimizer does otherwise than the Keras optimizer that comes after it among its bases."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update a variable, as Keras calls it."""
        sparse = isinstance(gradient, tf.IndexedSlices)
        if variable.dtype not in EXACT_TYPES or (sparse and not self._takes_rows()):
            super().update_step(gradient, variable, learning_rate)  # type: ignore[misc]
            return
        rate, gradient = tf.cast(learning_rate, variable.dtype), tf.cast(gradient, variable.dtype)
        self._update(variable, self._dense(variable, gradient) if sparse else gradient, rate)

    def _takes_rows(self) -> bool:
        """Whether it can do what Keras does with a sparse gradient."""
        return True

    def _dense(self, variable: Any, rows: tf.IndexedSlices) -> Any:
        """What the operation is to have in place of a sparse gradient; a state may be changed for it."""
        return tf.math.unsorted_segment_sum(rows.values, rows.indices, variable.shape[0])

    def _update(self, variable: Any, gradient: Any, rate: Any) -> None:
        """Update a variable by one operation, all in its type."""
        raise NotImplementedError

    def _state(self, states: Sequence[Any], variable: Any) -> Any:
        """The handle of the variable in which this optimizer keeps a state of another."""
        return states[self._get_variable_index(variable)].value.handle  # type: ignore[attr-defined]


class _FastAdam(_Fast):
    """Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2015, in the order of its section 2."""

    def _backend_update_step(self: Any, grads: Any, trainable_variables: Any, learning_rate: Any) -> None:
        step = keras.ops.cast(self.iterations + 1, "float32")
        self.__dict__["_powers"] = tf.pow(self.beta_1, step), tf.pow(self.beta_2, step)  # once, not for each variable
        super()._backend_update_step(grads, trainable_variables, learning_rate)  # type: ignore[misc]

    def _takes_rows(self: Any) -> bool:
        return bool(self.beta_1 != 0)

    def _dense(self: Any, variable: Any, rows: tf.IndexedSlices) -> Any:
        """Give the root of what Keras adds to the velocities: the sum of squares, where a word is there several times.

        What the momentums lack then, the sum less that root, is added to them first, as the operation multiplies them
        by beta_1. The other way round rounding would be as large as the squared sum.
        """
        root = tf.sqrt(super()._dense(variable, tf.IndexedSlices(tf.square(rows.values), rows.indices)))
        share = tf.math.divide_no_nan(rows.values, tf.gather(root, rows.indices))
        lacks = rows.values * (1 - share) * ((1 - self.beta_1) / self.beta_1)
        momentums = self._state(self._momentums, variable)
        tf.raw_ops.ResourceScatterAdd(resource=momentums, indices=rows.indices, updates=lacks)
        return root

    def _update(self: Any, variable: Any, gradient: Any, rate: Any) -> None:
        first, second = (tf.cast(power, variable.dtype) for power in self._powers)
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=self._state(self._momentums, variable),
            v=self._state(self._velocities, variable),
            beta1_power=first,
            beta2_power=second,
            lr=rate,
            beta1=tf.cast(self.beta_1, variable.dtype),
            beta2=tf.cast(self.beta_2, variable.dtype),
            epsilon=tf.cast(self.epsilon, variable.dtype),
            grad=gradient,
        )


class _FastSGD(_Fast):
    """Stochastic gradient descent, with momentum as Keras has it: the rate is within the momentum."""

    def _takes_rows(self: Any) -> bool:
        return bool(self.momentum != 0)  # else only the rows that were used change

    def _update(self: Any, variable: Any, gradient: Any, rate: Any) -> None:
        if self.momentum == 0:
            tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=rate, delta=gradient)
            return
        tf.raw_ops.ResourceApplyKerasMomentum(
            var=variable.handle,
            accum=self._state(self.momentums, variable),
            lr=rate,
            grad=gradient,
            momentum=tf.cast(self.momentum, variable.dtype),
            use_nesterov=self.nesterov,
        )


_KINDS: dict[Any, type] = {keras.optimizers.Adam: _FastAdam, keras.optimizers.SGD: _FastSGD}
"""Keras's class -> what is put before it. Classes that take over its update are of its kind, as AdamW is of Adam's."""
