"""LSTM and GRU whose steps are one pass in C++ while they train, in place of a loop of small operations."""

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfperf.training import xla_function
from tfperf.training.gradients import as_dense, gradients_by
from tfperf.training.saved_form import in_training, saved_as

__all__ = ["CompiledGRU", "CompiledLSTM"]

SOURCE = "recurrent"

KEPT = 5
"""Numbers of a step that its gradient needs, for each unit."""


class _Compiled(keras.layers.Layer):  # type: ignore[misc]
    """The loop over the steps, in C++ where that computes as Keras's; what it cannot is left to the class behind it."""

    kind: str
    """The name in C++."""

    takes = frozenset({"mask", "initial_state"})
    """Arguments of `call` with which it computes otherwise than Keras's layer."""

    def suits(self, shape: tuple[int | None, ...]) -> bool:
        """Whether it computes otherwise than Keras's layer for inputs of this shape, (batch, steps, features)."""
        cell = self.cell
        usual = cell.activation is keras.activations.tanh and cell.recurrent_activation is keras.activations.sigmoid
        drops = cell.recurrent_dropout or (cell.dropout and cell.implementation == 1)
        left = drops or not getattr(cell, "reset_after", True) or self.use_cudnn is True
        return usual and not left and len(shape) == 3 and shape[2] is not None

    def inner_loop(self, sequences: Any, initial_state: Any, mask: Any, training: bool = False) -> Any:
        """Go through all steps.

        Args:
            sequences: (batch, steps, features).
            initial_state: (batch, units) for each state, as a list.
            mask: (batch, steps), bool: the steps that each example sees; None: all.
            training: whether some of the inputs are dropped.

        Returns:
            The outputs of the last step, (batch, units), those of all, (batch, steps, units), and a list of the states.
        """
        known = self.compute_dtype == self.cell.compute_dtype in xla_function.TYPES
        suits = known and self.suits(tuple(sequences.shape))
        if not (suits and in_training(self) and xla_function.is_there(SOURCE)):
            return super().inner_loop(sequences, initial_state, mask, training)
        seen = mask[0] if keras.tree.is_nested(mask) else mask
        if seen is not None:
            seen = tf.cast(tf.reshape(seen, tf.shape(sequences)[:2]), tf.bool)
        if training and self.cell.dropout:
            sequences = sequences * tf.expand_dims(self.cell.get_dropout_mask(sequences[:, 0]), 1)
        if self.go_backwards:
            sequences, seen = tf.reverse(sequences, [1]), None if seen is None else tf.reverse(seen, [1])
        outputs, states = self._through(sequences, initial_state, seen)
        if seen is not None:  # a step that is not seen repeats the outputs before it, and there may be none
            shown = seen if self.zero_output_for_mask else tf.cumsum(tf.cast(seen, tf.int32), axis=1) > 0
            outputs = tf.where(tf.expand_dims(shown, 2), outputs, tf.zeros([], outputs.dtype))
        return outputs[:, -1], outputs, states

    def _through(self, sequences: Any, initial_state: Any, seen: Any) -> tuple[Any, Any]:
        """All outputs and the last states, where a step that is not seen leaves the states as they are."""
        cell, steps = self.cell, sequences.shape[1] or tf.shape(sequences)[1]
        given = tf.matmul(tf.reshape(sequences, [-1, sequences.shape[2]]), cell.kernel)
        bias, inner_bias = _biases(cell)
        given, kernel, inner_bias, initial = (
            tf.cast(one, tf.float32)
            for one in (given, cell.recurrent_kernel, inner_bias, tf.concat(initial_state, axis=1))
        )
        # In bfloat16 its gradient would be summed in that
        given = given if bias is None else tf.nn.bias_add(given, tf.cast(bias, tf.float32))
        flags = tf.ones([1], tf.uint8) if seen is None else tf.reshape(tf.cast(seen, tf.uint8), [-1])
        found = _through_steps(self.kind)(given, kernel, inner_bias, initial, flags)
        outputs, last = (tf.cast(one, self.compute_dtype) for one in found)
        return tf.reshape(outputs, [-1, steps, cell.units]), tf.split(last, len(initial_state), axis=1)


@saved_as(keras.layers.LSTM)
class CompiledLSTM(_Compiled, keras.layers.LSTM):  # type: ignore[misc]
    """Keras's `LSTM`, whose steps are one pass by the C++ compiler of this machine while it trains.

    As Keras has it on a CPU, each step is some twenty operations in a loop, and twice as many for the gradient. Here
    the inputs are multiplied for all steps at once; then each thread takes some of the examples through all steps, with
    the kernel and the states in its cache. Numbers are float32 within, whatever the type. Arguments, weights,
    gradients, saved form and the numbers that dropout draws are Keras's. Left to Keras: other activations than tanh and
    sigmoid, dropout of states, all outside training, and everything where there is no C++ compiler, or a GPU.

    Source: Hochreiter and Schmidhuber, "Long Short-Term Memory", 1997; Keras's layer of that name.
    """

    kind = "lstm"


@saved_as(keras.layers.GRU)
class CompiledGRU(_Compiled, keras.layers.GRU):  # type: ignore[misc]
    """The same of Keras's `GRU`; one that resets before the product is left to Keras.

    Source: Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder", 2014; Keras's layer of that name.
    """

    kind = "gru"


def _biases(cell: Any) -> tuple[Any, Any]:
    """What is added to the products of inputs, None: nothing, and to those of outputs, (gates,)."""
    if cell.bias is None:
        return None, tf.zeros([cell.recurrent_kernel.shape[1]])
    if len(cell.bias.shape) == 1:  # where both are only summed
        return None, cell.bias
    of_inputs, of_outputs = tf.unstack(tf.convert_to_tensor(cell.bias))
    return of_inputs, of_outputs


def _step_of_lstm(given: Any, inner: Any, states: Any) -> Any:
    _, cell = tf.split(states, 2, axis=1)
    taken, remembered, fresh, shown = tf.split(given + inner, 4, axis=1)
    cell = tf.sigmoid(remembered) * cell + tf.sigmoid(taken) * tf.tanh(fresh)
    return tf.concat([tf.sigmoid(shown) * tf.tanh(cell), cell], axis=1)


def _step_of_gru(given: Any, inner: Any, states: Any) -> Any:
    (stays, reset, fresh), products = (tf.split(one, 3, axis=1) for one in (given, inner))
    stays, reset = tf.sigmoid(stays + products[0]), tf.sigmoid(reset + products[1])
    return stays * states + (1 - stays) * tf.tanh(fresh + reset * products[2])


STEPS: dict[str, Callable[..., Any]] = {"lstm": _step_of_lstm, "gru": _step_of_gru}
"""Name in C++ -> a step by TensorFlow's operations: from what inputs and outputs give to the gates, (batch, gates), and
the states, (batch, all units of all states), to the next states."""


@functools.cache
def _through_steps(kind: str) -> Callable[..., Any]:
    """A function that takes a batch through all steps of one of `STEPS`, with gradients of every order.

    It is given, all float32 but for the last:
        - what the inputs give to the gates, a row for each step of each example, (batch * steps, gates)
        - the kernel of the outputs, (units, gates), and its bias, (gates,)
        - the states at the start side by side, the outputs first, (batch, units of all states)
        - which steps are seen, (batch * steps,) or one for all, uint8

    and returns the outputs, (batch * steps, units), and the states at the end.
    """

    @xla_function.compiled
    def natively(*operands: Any) -> Any:
        given, kernel, *_ = operands
        outputs, kept = (tf.TensorSpec([given.shape[0], times * kernel.shape[0]]) for times in (1, KEPT))
        return xla_function.call(f"tfperf_{kind}_f32", operands, [outputs, kept, 3])

    @xla_function.compiled
    def natively_back(*operands: Any) -> Any:
        upstream, *_, kernel, _ = operands
        rows = tf.TensorSpec([upstream.shape[0], kernel.shape[1]])
        return xla_function.call(f"tfperf_{kind}_gradient_f32", operands, [rows, rows, 1])

    def backward(
        upstream: Any, of_last: Any, outputs: Any, kept: Any, _: Any, kernel: Any, __: Any, initial: Any, seen: Any
    ) -> list[Any]:
        of_given, of_inner, of_initial = natively_back(upstream, of_last, kept, kernel, seen)
        units = kernel.shape[0]
        by_example = tf.reshape(outputs, tf.stack([tf.shape(initial)[0], -1, units]))
        before = tf.concat([initial[:, tf.newaxis, :units], by_example[:, :-1]], axis=1)
        of_kernel = tf.matmul(tf.reshape(before, [-1, units]), of_inner, transpose_a=True)
        return [of_given, of_kernel, tf.reduce_sum(of_inner, axis=0), of_initial]

    def formulas(given: Any, kernel: Any, bias: Any, initial: Any, seen: Any) -> Any:
        units = kernel.shape[0]

        def next_states(states: Any, now: Any) -> Any:
            after = STEPS[kind](now[0], tf.matmul(states[:, :units], kernel) + bias, states)
            return tf.where(now[1] > 0, after, states)

        def by_step(rows: Any) -> Any:
            return tf.transpose(tf.reshape(rows, tf.stack([tf.shape(initial)[0], -1, rows.shape[1]])), [1, 0, 2])

        every = tf.expand_dims(seen * tf.ones(tf.shape(given)[:1], seen.dtype), 1)
        states = tf.scan(next_states, (by_step(given), by_step(every)), initial)
        outputs = tf.transpose(states[:, :, :units], [1, 0, 2])
        return [tf.reshape(outputs, [-1, units]), states[-1]]

    gradients_of = gradients_by(backward, lambda _, __, *operands: formulas(*operands), first=2, end=-1, results=2)

    def through(*operands: Any) -> Any:
        # Nobody differentiates what is within: XLA's calls have no gradients
        outputs, kept, last = natively(*map(tf.stop_gradient, operands))

        def gradients(*upstreams: Any) -> Any:
            dense = map(as_dense, upstreams, (outputs, last))
            return [*gradients_of(*dense, *map(tf.stop_gradient, (outputs, kept)), *operands), None]

        return [outputs, last], gradients

    differentiable: Callable[..., Any] = tf.custom_gradient(through)
    return differentiable
