"""Functions whose gradients have code of their own."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import record

__all__ = ["as_dense", "differentiable", "gradients_by", "is_recorded", "is_watched", "with_gradient"]


def is_recorded() -> bool:
    """Whether a tape may record what is computed now. What is exported or predicts is traced without one."""
    return bool(record.could_possibly_record())


def is_watched(tensor: Any) -> bool:
    """Whether a tape asks for the gradient of a tensor, or of what it was computed from."""
    return bool(record.should_record_backprop([tensor]))


def as_dense(upstream: Any, result: Any) -> Any:
    """The gradient of a result as a tensor of its shape.

    Where rows of the result were gathered it comes as a list of rows, and from a `tf.py_function` without a shape.
    """
    return tf.ensure_shape(tf.convert_to_tensor(upstream), result.shape)


def differentiable(
    forward: Callable[..., Any], backward: Callable[..., Any], formulas: Callable[..., Any], end: int | None = None
) -> Callable[..., Any]:
    """A function whose gradients have code of their own, for every order.

    Args:
        forward: from operands to the result.
        backward, formulas: as of `gradients_by`.
        end: operands from this one on are whole numbers and have no gradients; `backward` gives none.
    """
    gradients_of = gradients_by(backward, formulas, end=end)

    def function(*operands: Any) -> Any:
        # Nobody differentiates what is within: XLA's calls have no gradients
        result = forward(*map(tf.stop_gradient, operands))

        def gradients(upstream: Any) -> list[Any]:
            found: list[Any] = tf.nest.flatten(gradients_of(as_dense(upstream, result), *operands))
            return found + [None] * (len(operands) - len(found))

        return result, gradients

    differentiable_function: Callable[..., Any] = tf.custom_gradient(function)
    return differentiable_function


def with_gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of TensorFlow's operations with a gradient of its own, which TensorFlow still fuses.

    `tf.custom_gradient` puts an operation behind the result in a graph, and then a ReLU is no longer run as part of the
    convolution before it. This only tells tapes. Where no tape sees the function, as in another `tf.function` that is
    differentiated as a whole, the gradient is that of its operations.

    Args:
        function: from tensors to the result, a tensor that is none of them, and to what makes the list of their
            gradients of the result's, which has the result's shape.
    """

    def recorded(*operands: Any) -> Any:
        tensors = [tf.convert_to_tensor(one) for one in operands]  # of variables, which tapes watch
        with record.stop_recording():
            result, backward = function(*tensors)

        def gradients(upstream: Any) -> Any:
            return backward(as_dense(upstream, result))

        record.record_operation("TfperfFunction", [result], tensors, gradients)
        return result

    return recorded


def gradients_by(
    backward: Callable[..., Any],
    formulas: Callable[..., Any],
    first: int = 0,
    end: int | None = None,
    results: int = 1,
) -> Callable[..., Any]:
    """Gradients that have code of their own, and can be differentiated themselves.

    Args:
        backward: from the gradient of a function's result, or of several, and its operands to the operands' gradients.
        formulas: computes the function by TensorFlow's operations: gradients of gradients are taken of it.
        first, end: `backward` gives the gradients of the operands from the first on, and up to the one before the end.
        results: the function has as many; of several `formulas` makes a list.

    Returns:
        Computes as `backward` does.
    """

    def gradients_of(*operands: Any) -> Any:
        given = tuple(map(tf.identity, operands))  # of this graph, where another one computed the function

        def once_more(*upstreams: Any) -> Any:
            upstream, others = list(given[:results]), given[results:]
            floating = [one for one in given if one.dtype.is_floating]
            with tf.GradientTape() as outer:
                outer.watch(floating)
                with tf.GradientTape() as inner:
                    inner.watch(others[first:end])
                    result = formulas(*others)
                gradients = inner.gradient(tf.nest.flatten(result), others[first:end], upstream)
            found = outer.gradient(gradients, floating, upstreams, tf.UnconnectedGradients.ZERO)
            return found + [None] * (len(given) - len(floating))  # whole numbers are the last operands

        return backward(*map(tf.stop_gradient, given)), once_more

    differentiable_gradients: Callable[..., Any] = tf.custom_gradient(gradients_of)
    return differentiable_gradients
