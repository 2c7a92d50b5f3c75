"""Convolutions of few channels, as the first of a net, by passes in C++: gradients, and within XLA all of it."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tfperf.training import xla_function
from tfperf.training.gradients import as_dense, gradients_by, with_gradient
from tfperf.training.padding import convolved_side
from tfperf.training.pooling import Pooling

__all__ = ["convolve_few", "convolve_few_within_xla", "is_for_few", "pool_few"]

SOURCE = "few_channels"

FEW_CHANNELS, FEW_WEIGHTS = 4, 27
"""What images have at most, and a kernel of 3 x 3 for three of them: weights for each filter. From larger kernels on
oneDNN is faster."""

MOST_PLACES = {False: 255, True: 8}
"""In a window, for the largest and for the mean: C++ keeps in 8 bits where it was, or what had a part in it."""

MADE = "_tfperf_made"
"""Where a tensor in a graph keeps how `convolve_few_within_xla` computed it, and of what."""


def is_for_few(inputs: Any, kernel_size: tuple[int, int]) -> bool:
    """Whether `convolve_few` is there and worth it for inputs (batch, height, width, channels) and a kernel."""
    channels = inputs.shape[-1]
    few = channels <= FEW_CHANNELS and math.prod(kernel_size) * channels <= FEW_WEIGHTS
    return few and inputs.dtype.name in xla_function.TYPES and xla_function.is_there(SOURCE)


def convolve_few(
    inputs: Any, kernel: Any, bias: Any, strides: tuple[int, int], padding: str, *, relu: bool = False
) -> Any:
    """Convolve, add a bias, and cut off what is below 0, with the gradients of kernel and bias by one pass in C++.

    Args:
        inputs: (batch, height, width, channels), float32 or bfloat16; height and width are known.
        kernel: (kernel height, kernel width, channels, filters), of the same type.
        bias: (filters,), of the same type; None: none.
        strides: of height and width.
        padding: "same" or "valid".
        relu: whether to cut off.

    Returns:
        (batch, height', width', filters).
    """
    return _function(_Form(strides, padding.upper(), relu))(inputs, kernel, _offset(kernel, bias))


def convolve_few_within_xla(
    inputs: Any, kernel: Any, bias: Any, strides: tuple[int, int], padding: str, *, relu: bool = False
) -> Any:
    """Compute what `convolve_few` does by C++ forward as well, which XLA has no fast code for.

    Args:
        inputs, kernel, bias, strides, padding, relu: as of `convolve_few`.

    Returns:
        (batch, height', width', filters). `pool_few` takes it.
    """
    form, operands = _Form(strides, padding.upper(), relu), (inputs, kernel, _offset(kernel, bias))
    outputs = _pooling_function(form, Pooling((1, 1)))(*operands)
    setattr(outputs, MADE, (form, operands))
    return outputs


def pool_few(convolved: Any, pooling: Pooling) -> Any:
    """Pool what `convolve_few_within_xla` gave, in the same pass.

    What was convolved is then written nowhere: XLA leaves out what is not used. Where it is used elsewhere, it is
    computed once more. It has no part in the gradients, so that a tape that watches it alone finds none.

    Args:
        convolved: that, or any other tensor.
        pooling: windows, not larger than the images, and what is taken of them.

    Returns:
        (batch, height', width', filters); None: it is another tensor, or the window is too large.
    """
    form, operands = getattr(convolved, MADE, (None, ()))
    if form is None or math.prod(pooling.window) > MOST_PLACES[pooling.mean]:
        return None
    return _pooling_function(form, pooling)(*operands)


class _Form(NamedTuple):
    """What is computed of images, a kernel and a bias."""

    strides: tuple[int, int]
    padding: str
    """TensorFlow's word: SAME or VALID."""
    relu: bool

    @property
    def options(self) -> dict[str, Any]:
        """What TensorFlow's convolutions are told."""
        return {"strides": [1, *self.strides, 1], "padding": self.padding}

    def by_formulas(self, inputs: Any, kernel: Any, bias: Any) -> Any:
        """Compute it by TensorFlow's operations."""
        outputs = tf.nn.bias_add(tf.nn.conv2d(inputs, kernel, **self.options), bias)
        return tf.nn.relu(outputs) if self.relu else outputs

    def settings(self, inputs: Any, kernel: Any, window: tuple[int, int]) -> dict[str, int]:
        """What the functions in C++ are told."""
        (height, above), (width, left) = (
            convolved_side(inputs.shape[axis + 1], kernel.shape[axis], self.strides[axis], self.padding)
            for axis in range(2)
        )
        return {
            "relu": int(self.relu),
            "stride_down": self.strides[0],
            "stride_along": self.strides[1],
            "above": above,
            "left": left,
            "convolved_height": height,
            "convolved_width": width,
            "window_height": window[0],
            "window_width": window[1],
        }


def _offset(kernel: Any, bias: Any) -> Any:
    return tf.zeros(kernel.shape[-1:], kernel.dtype) if bias is None else bias


def _gradients_of_weights(name: str, form: _Form, window: tuple[int, int]) -> Callable[..., Any]:
    @xla_function.compiled
    def in_one_pass(upstream: Any, places: Any, inputs: Any, kernel: Any, bias: Any) -> list[Any]:
        told = form.settings(inputs, kernel, window)
        named = f"{name}_{xla_function.TYPES[inputs.dtype.name]}"
        return xla_function.call(named, [upstream, places, inputs, kernel, bias], [3, 4], **told)

    return in_one_pass


@functools.cache
def _function(form: _Form) -> Callable[..., Any]:
    """A function of images, a kernel and a bias, by TensorFlow forward."""
    in_one_pass = _gradients_of_weights("tfperf_few_channels_gradients", form, (1, 1))

    def convolved(inputs: Any, kernel: Any, bias: Any) -> Any:
        outputs = form.by_formulas(inputs, kernel, bias)

        def of_weights(upstream: Any, *operands: Any) -> Any:
            return in_one_pass(upstream, tf.stop_gradient(outputs) if form.relu else upstream, *operands)

        def backward(upstream: Any) -> list[Any]:
            masked = tf.raw_ops.ReluGrad(gradients=upstream, features=outputs) if form.relu else upstream
            back = _input_gradient(form, masked, inputs, kernel)
            return [back, *gradients_by(of_weights, form.by_formulas, first=1)(upstream, inputs, kernel, bias)]

        return outputs, backward

    return with_gradient(convolved)


def _input_gradient(form: _Form, upstream: Any, inputs: Any, kernel: Any) -> Any:
    """(batch, height, width, channels), of the convolution's upstream gradients. Graphs leave it out for images."""
    sizes = tf.shape(inputs)
    return tf.raw_ops.Conv2DBackpropInput(input_sizes=sizes, filter=kernel, out_backprop=upstream, **form.options)


@functools.cache
def _pooling_function(form: _Form, pooling: Pooling) -> Callable[..., Any]:
    """A function of images, a kernel and a bias, by C++, with pooling behind it."""
    window = pooling.window

    def formulas(inputs: Any, kernel: Any, bias: Any) -> Any:
        return pooling.by_formulas(form.by_formulas(inputs, kernel, bias))

    @xla_function.compiled
    def forward(inputs: Any, kernel: Any, bias: Any) -> list[Any]:
        told = form.settings(inputs, kernel, window)
        sizes = told["convolved_height"] // window[0], told["convolved_width"] // window[1]
        shape = [inputs.shape[0], *sizes, kernel.shape[-1]]
        name = f"tfperf_few_channels_{pooling.name}_{xla_function.TYPES[inputs.dtype.name]}"
        results = [tf.TensorSpec(shape, inputs.dtype), tf.TensorSpec(shape, tf.uint8)]
        return xla_function.call(name, [inputs, kernel, bias], results, **told)

    in_one_pass = _gradients_of_weights(f"tfperf_few_channels_{pooling.name}_gradients", form, window)

    def pooled(inputs: Any, kernel: Any, bias: Any) -> Any:
        # Nobody differentiates what is within: XLA's calls have no gradients
        outputs, places = forward(*map(tf.stop_gradient, (inputs, kernel, bias)))

        def of_weights(upstream: Any, *operands: Any) -> Any:
            return in_one_pass(upstream, places, *operands)

        def backward(upstream: Any) -> list[Any]:
            upstream = as_dense(upstream, outputs)
            told = form.settings(inputs, kernel, window)
            sizes = told["convolved_height"], told["convolved_width"]
            back = _input_gradient(form, _spread(upstream, places, pooling, sizes), inputs, kernel)
            return [back, *gradients_by(of_weights, formulas, first=1)(upstream, inputs, kernel, bias)]

        return outputs, backward

    function: Callable[..., Any] = tf.custom_gradient(pooled)
    return function


def _spread(numbers: Any, places: Any, pooling: Pooling, sizes: tuple[int, int]) -> Any:
    """Put numbers (batch, h, w, filters) at their places in windows, and zeros elsewhere: (batch, *sizes, filters)."""
    window, all_places = pooling.window, math.prod(pooling.window)
    of_places = tf.reshape(tf.range(all_places, dtype=tf.int32), [1, 1, window[0], 1, window[1], 1])
    numbers = numbers / all_places if pooling.mean else numbers
    places, apart = tf.cast(places, tf.int32)[:, :, None, :, None], numbers[:, :, None, :, None]
    there = tf.bitwise.right_shift(places, of_places) % 2 == 1 if pooling.mean else places == of_places
    windows = tf.where(there, apart, tf.zeros([], numbers.dtype))  # (batch, h', h, w', w, filters)
    used = [count * side for count, side in zip(numbers.shape[1:3], window, strict=True)]
    rest = [[0, 0], *([0, size - side] for size, side in zip(sizes, used, strict=True)), [0, 0]]
    return tf.pad(tf.reshape(windows, [-1, *used, numbers.shape[-1]]), rest)
