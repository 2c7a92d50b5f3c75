"""Keras's optimizers with one operation for each variable in place of some twenty, or all updates as one program."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfperf.exports.keras_nets import PLAIN_CLASS
from tfperf.training import xla_function
from tfperf.training.saved_form import with_class

__all__ = ["fast_optimizer", "innermost", "is_fast", "why_not_fast"]

EXACT_TYPES = (tf.float32, tf.float64)
"""Types of weights that one operation updates. In bfloat16 it would round the decay 0.999 of Adam to 1."""

MANY_NUMBERS = 1 << 16
"""Fewer weights take less time in Keras's operations than the program's call does."""


def fast_optimizer(optimizer: keras.optimizers.Optimizer | str) -> keras.optimizers.Optimizer:
    """Have an optimizer read and write each variable once in an update, with Keras's formulas and states.

    Keras writes an update of Adam as some twenty operations, each of which reads and writes the whole variable.
    Of Adam, AdamW and SGD TensorFlow has one operation that does it all. The updates of the others XLA compiles as one
    program, once for some seconds, where there are numbers enough. Weight decay, clipping, averages of weights,
    accumulation, loss scales and schedules stay Keras's. So do weights in half precision, as under the policy
    "bfloat16", and embeddings under SGD without momentum, of which few rows change; and of what XLA would compile
    sparse gradients, all under a strategy, and GPUs. What is saved is Keras's optimizer.

    `fit` of `tfperf.training` takes notice of it at any time. Keras's `fit` keeps what it has traced: use this before
    the first `fit`, or set `model.train_function = None` afterwards.

    Args:
        optimizer: Adadelta, Adagrad, Adam, Adamax, AdamW, Ftrl, Lion, Nadam, RMSprop or SGD, or what they are called; a
            LossScaleOptimizer of one, and one that is distributed by `tfperf.parallel.horovod`. It is changed in place.

    Returns:
        The same optimizer.

    Raises:
        TypeError: no Keras optimizer.
        ValueError: one of another kind.
    """
    optimizer = keras.optimizers.get(optimizer)
    inner = innermost(optimizer)
    if is_fast(inner):
        return optimizer
    if why := why_not_fast(optimizer):
        raise ValueError(why)
    kind = type(inner)
    fast = _fast_kind(inner)
    saved = keras.optimizers.serialize(inner)["module"] or kind.__module__
    names = {"__module__": saved, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__, PLAIN_CLASS: kind}
    with_class(inner, type(kind.__name__, (fast, kind), names))
    return optimizer


def why_not_fast(optimizer: keras.optimizers.Optimizer) -> str | None:
    """Why `fast_optimizer` refuses an optimizer; None: it does not."""
    inner = innermost(optimizer)
    if is_fast(inner) or _fast_kind(inner) is not None:
        return None
    names = ", ".join(sorted({"AdamW", *(kind.__name__ for kind in _KINDS)}))
    return f"expected one of Keras's optimizers {names}. Received: {type(inner).__name__}"


def is_fast(optimizer: keras.optimizers.Optimizer) -> bool:
    """Whether `fast_optimizer` has changed an optimizer already."""
    return isinstance(innermost(optimizer), _Fast)


def innermost(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """The optimizer that updates the weights: what a LossScaleOptimizer holds, else the optimizer itself."""
    while isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = optimizer.inner_optimizer
    return optimizer


def _fast_kind(optimizer: Any) -> Any:
    """The class that is put before an optimizer's; None: there is none for it."""
    update_step = type(optimizer).update_step
    fast = next((fast for kind, fast in _KINDS.items() if update_step is kind.update_step), None)
    return _Compiled if fast is _FastAdam and optimizer.amsgrad else fast


class _Fast:
    """What `fast_optimizer` has changed."""


class _Compiled(_Fast):
    """All updates of a step by one program of XLA's, which reads and writes each variable once."""

    def _distributed_tf_update_step(self: Any, distribution: Any, grads_and_vars: Any, learning_rate: Any) -> None:
        pairs = list(grads_and_vars)
        compiled = [(grad, var) for grad, var in pairs if isinstance(grad, tf.Tensor) and var.dtype in EXACT_TYPES]
        many = sum(var.shape.num_elements() for _, var in compiled) >= MANY_NUMBERS
        if not many or tf.distribute.has_strategy() or tf.config.list_logical_devices("GPU"):
            compiled = []
        if compiled:
            gradients, variables = zip(*compiled, strict=True)
            self._program(variables)(gradients, tf.convert_to_tensor(learning_rate))
        done = {id(var) for _, var in compiled}
        others = [(grad, var) for grad, var in pairs if id(var) not in done]
        super()._distributed_tf_update_step(distribution, others, learning_rate)  # type: ignore[misc]

    def _program(self: Any, variables: tuple[Any, ...]) -> Any:
        """The program that updates these variables, which is compiled once."""
        programs = self.__dict__.setdefault("_programs", {})
        key = tuple(map(id, variables))
        if key not in programs:

            @xla_function.compiled
            def update(gradients: Any, learning_rate: Any) -> None:
                for gradient, variable in zip(gradients, variables, strict=True):
                    self.update_step(gradient, variable, learning_rate)

            programs[key] = update
        return programs[key]


class _OfOneOperation(_Fast):
    """What it does otherwise than the Keras optimizer that comes after it among its bases."""

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


class _FastAdam(_OfOneOperation):
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


class _FastSGD(_OfOneOperation):
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


_COMPILED = (
    keras.optimizers.Adadelta,
    keras.optimizers.Adagrad,
    keras.optimizers.Adamax,
    keras.optimizers.Ftrl,
    keras.optimizers.Lion,
    keras.optimizers.Nadam,
    keras.optimizers.RMSprop,
)
"""Those that compute each number by itself, for which TensorFlow has no operation with Keras's formula and states."""

_KINDS: dict[Any, type] = {
    keras.optimizers.Adam: _FastAdam,
    keras.optimizers.SGD: _FastSGD,
    **dict.fromkeys(_COMPILED, _Compiled),
}
"""Keras's class -> what is put before it. Classes that take over its update are of its kind, as AdamW is of Adam's."""
