"""Convolutions whose backward pass does not wait for the slow half of oneDNN's."""

import math
from typing import Any

import keras
import tensorflow as tf

from tfperf.native.processor import has_amx, multiplies_pairs
from tfperf.training import xla_function
from tfperf.training.activation import activate
from tfperf.training.amx_convolution import can_convolve, convolve_by_amx
from tfperf.training.depthwise import convolve_each
from tfperf.training.direct_convolution import (
    can_convolve_directly,
    input_gradient_directly,
    kernel_gradient_directly,
)
from tfperf.training.few_channels import convolve_few, is_for_few
from tfperf.training.gradients import is_recorded, is_watched, with_gradient
from tfperf.training.images import Images, are_plain_images, images_of, of_layer
from tfperf.training.kernel_gradient import can_be_by_amx, kernel_gradient
from tfperf.training.saved_form import in_training, saved_as
from tfperf.training.winograd import (
    can_be_by_winograd,
    convolve_by_winograd,
    input_gradient_by_winograd,
    kernel_gradient_by_winograd,
)

__all__ = ["SwappedConv1D", "SwappedConv2D", "convolve"]

MANY_WEIGHTS = 2**20
"""In bfloat16 so many are 2 MiB, which is much of a core's cache: from there on oneDNN is slower than C++."""


def convolve(
    inputs: Any,
    kernel: Any,
    bias: Any = None,
    strides: tuple[int, int] = (1, 1),
    padding: str = "valid",
    *,
    training: bool = True,
) -> Any:
    """Convolve and add a bias, with gradients that are faster than oneDNN's.

    Where the kernel is 3 x 3 and the strides are 1, C++ computes the whole convolution by Winograd's method: in
    float32 on processors with AVX2, in bfloat16 on those that multiply in it, and nowhere beside AMX. Else C++
    computes the gradients in float32. In bfloat16 a kernel's gradient sums products of inputs and upstream gradients
    over batch and places. That is a convolution too: of the inputs, with channels as the batch, by the upstream
    gradients. oneDNN's forward convolutions in bfloat16 are faster on CPUs without matrix units than its gradients of
    kernels. C++ sums the products by AMX, in bfloat16 and with strides of 1, and where the processor multiplies pairs
    of bfloat16. Where a kernel has many weights, C++ computes by AMX the outputs and the gradient of the inputs as
    well. Without a compiler the gradient is oneDNN's with AMX, and else such a convolution. Where the kernel is of one
    place, 1 x 1, the sum is a product of two matrices, and so is the gradient of the inputs where the strides are 1.

    Args:
        inputs: (batch, height, width, channels), float32 or bfloat16; height and width are known.
        kernel: (kernel height, kernel width, channels, filters), of the same type.
        bias: (filters,), of the same type; None: none.
        strides: of height and width.
        padding: "same" or "valid".
        training: False: without C++.

    Returns:
        (batch, height', width', filters).
    """
    inputs, kernel = tf.convert_to_tensor(inputs), tf.convert_to_tensor(kernel)
    trains = training and is_recorded()  # what is exported no tape sees, and it is to have no C++
    if trains and _has_many_weights(kernel) and can_convolve(inputs, kernel, strides, padding):
        outputs = convolve_by_amx(inputs, kernel, padding)
        return outputs if bias is None else tf.add(outputs, bias)  # BiasAdd's gradient sums in bfloat16
    if trains and can_be_by_winograd(inputs, kernel, strides, padding):
        return _by_winograd(inputs, kernel, bias, padding)
    directly = trains and _is_summed_directly(inputs, kernel, padding)
    asked = is_watched(inputs)
    form = {"strides": [1, *strides, 1], "padding": padding.upper()}

    def convolved(inputs: Any, kernel: Any, *bias: Any) -> Any:
        outputs = tf.nn.conv2d(inputs, kernel, **form)
        for one in bias:
            outputs = tf.nn.bias_add(outputs, one)

        def backward(upstream: Any) -> list[Any]:
            given = (upstream, inputs, kernel, strides, padding)
            if directly:  # which no graph leaves out
                back = input_gradient_directly(*given) if asked else None
                gradient = kernel_gradient_directly(*given)
            else:
                back = _input_gradient(inputs, kernel, upstream, strides, form)
                gradient = _kernel_gradient(*given, training=training)
            return [back, gradient, *(tf.reduce_sum(upstream, [0, 1, 2]) for _ in bias)]  # as above

        return outputs, backward

    return with_gradient(convolved)(inputs, kernel, *([] if bias is None else [bias]))


def _by_winograd(inputs: Any, kernel: Any, bias: Any, padding: str) -> Any:
    asked = is_watched(inputs)  # of what nobody asks for no graph leaves out C++

    def convolved(inputs: Any, kernel: Any, *biases: Any) -> Any:
        def backward(upstream: Any) -> list[Any]:
            given = upstream, inputs, kernel, padding
            back = input_gradient_by_winograd(*given) if asked else None
            gradients = [back, kernel_gradient_by_winograd(*given)]
            return gradients + [tf.reduce_sum(upstream, [0, 1, 2]) for _ in biases]

        return convolve_by_winograd(inputs, kernel, biases[0] if biases else None, padding), backward

    return with_gradient(convolved)(inputs, kernel, *([] if bias is None else [bias]))


def _has_many_weights(kernel: Any) -> bool:
    """Whether oneDNN is slow at them."""
    return bool(kernel.shape.is_fully_defined() and math.prod(kernel.shape) > MANY_WEIGHTS)


def _is_summed_directly(inputs: Any, kernel: Any, padding: str) -> bool:
    """Whether C++ computes the gradients: in float32, but for kernels of one place, which are products of matrices."""
    of_places = inputs.dtype == tf.float32 and tuple(kernel.shape[:2]) != (1, 1)
    return of_places and can_convolve_directly(inputs, kernel, padding)


def _is_summed_in_pairs(inputs: Any, kernel: Any, padding: str) -> bool:
    """Whether C++ computes the kernel's gradient alone, in bfloat16; oneDNN is as fast at the others."""
    in_pairs = inputs.dtype == tf.bfloat16 and tuple(kernel.shape[:2]) != (1, 1) and multiplies_pairs()
    return in_pairs and can_convolve_directly(inputs, kernel, padding)


def _is_by_amx(inputs: Any, kernel: Any, strides: tuple[int, int]) -> bool:
    """Whether AMX multiplies, in bfloat16 and with strides of 1: C++ is faster there than a convolution forward.

    And that may be wrong, for some batches and widths of images. By AMX oneDNN 3.7.3 is wrong for 2 to 14 channels, an
    even number, whose product with the kernel's width is a multiple of 32 larger than 32. The channels are here the
    images of a batch, the width that of an image.
    """
    return inputs.dtype == tf.bfloat16 and tuple(kernel.shape[:2]) != (1, 1) and tuple(strides) == (1, 1) and has_amx()


def _input_gradient(inputs: Any, kernel: Any, upstream: Any, strides: tuple[int, int], form: dict[str, Any]) -> Any:
    """(batch, height, width, channels); `form` is what the convolution forward had."""
    sizes = tf.shape(inputs)
    if tuple(kernel.shape[:2]) == tuple(strides) == (1, 1):
        return tf.reshape(tf.matmul(_as_matrix(upstream), kernel[0, 0], transpose_b=True), sizes)
    return tf.raw_ops.Conv2DBackpropInput(input_sizes=sizes, filter=kernel, out_backprop=upstream, **form)


def _kernel_gradient(
    upstream: Any, inputs: Any, kernel: Any, strides: tuple[int, int], padding: str, *, training: bool
) -> Any:
    """The gradient of the kernel, of its shape."""
    if training and _is_summed_in_pairs(inputs, kernel, padding):
        return kernel_gradient_directly(upstream, inputs, kernel, strides, padding)
    if not _is_by_amx(inputs, kernel, strides):
        return _swapped(inputs, upstream, kernel.shape, strides, padding)
    if training and can_be_by_amx():
        return kernel_gradient(upstream, inputs, kernel, padding)
    sizes, form = tf.shape(kernel), {"strides": [1, *strides, 1], "padding": padding.upper()}
    return tf.raw_ops.Conv2DBackpropFilter(input=inputs, out_backprop=upstream, filter_sizes=sizes, **form)


def _as_matrix(images: Any) -> Any:
    """(batch, height, width, channels) as (places, channels)."""
    return tf.reshape(images, [-1, images.shape[-1]])


def _swapped(inputs: Any, upstream: Any, shape: Any, strides: tuple[int, int], padding: str) -> Any:
    """Convolve the inputs by the upstream gradients, channels and batch exchanged: (kernel height, width, in, out)."""
    if tuple(shape[:2]) == (1, 1):
        used = inputs[:, :: strides[0], :: strides[1]]
        return tf.matmul(_as_matrix(used), _as_matrix(upstream), transpose_a=True)[None, None]
    edges = [
        _edges(inputs.shape[axis + 1], upstream.shape[axis + 1], shape[axis], strides[axis], padding)
        for axis in range(2)
    ]
    rows, columns = ((max(before, 0), max(after, 0)) for before, after in edges)
    height, width = (inputs.shape[axis + 1] + min(edges[axis][1], 0) for axis in range(2))
    images = tf.transpose(inputs[:, :height, :width], [3, 1, 2, 0])  # (channels, height, width, batch)
    filters = tf.transpose(upstream, [1, 2, 0, 3])  # (height', width', batch, filters)
    gradient = tf.nn.conv2d(images, filters, 1, [(0, 0), rows, columns, (0, 0)], dilations=strides)
    return tf.transpose(gradient, [1, 2, 0, 3])


def _edges(size: int, made: int, kernel: int, stride: int, padding: str) -> tuple[int, int]:
    """What to add before and after an axis, so that the convolution by `made` dilated numbers gives `kernel` ones."""
    missing = (made - 1) * stride + kernel - size
    before = max(missing, 0) // 2 if padding == "same" else 0
    return before, missing - before


class _Swapped(keras.layers.Layer):  # type: ignore[misc]
    """What the layers here have in common."""

    def call(self, inputs: Any) -> Any:
        """Convolve, (batch, ..., channels) -> (batch, ..., filters)."""
        if not self.suits(tuple(inputs.shape)):
            return super().call(inputs)
        images = images_of(self, inputs, self.kernel)
        bias = None if self.bias is None else tf.convert_to_tensor(self.bias)
        activation = self.activation
        if self.groups > 1:
            outputs = _in_groups(images, self.groups, training=in_training(self))
            outputs = outputs if bias is None else keras.ops.add(outputs, bias)
        elif in_training(self) and is_for_few(images.inputs, images.kernel.shape[:2]):
            relu = activation is keras.activations.relu
            outputs = convolve_few(images.inputs, images.kernel, bias, images.strides, images.padding, relu=relu)
            activation = None if relu else activation
        else:
            given = images.inputs, images.kernel, bias, images.strides, images.padding
            outputs = convolve(*given, training=in_training(self))
        outputs = of_layer(self, outputs)
        return outputs if activation is None else activate(self, activation, outputs)

    def suits(self, shape: tuple[int | None, ...]) -> bool:
        """Whether it computes otherwise than Keras's layer for inputs of this shape, (batch, ..., channels)."""
        return are_plain_images(self, shape)

    def always_pays(self) -> bool:
        """Whether it is faster beyond doubt: for groups TensorFlow's own code on a CPU takes tens of times as long."""
        return self.groups > 1 and not tf.config.list_logical_devices("GPU")


def _in_groups(images: Images, groups: int, *, training: bool) -> Any:
    inputs, kernel, strides, padding = images
    one_each = groups == inputs.shape[-1] == kernel.shape[-1] and len(set(strides)) == 1
    if one_each and inputs.dtype.name in xla_function.TYPES:
        kernel = tf.reshape(kernel, [*kernel.shape[:2], groups, 1])
        return convolve_each(inputs, kernel, strides, padding, training=training)
    parts = zip(tf.split(inputs, groups, axis=-1), tf.split(kernel, groups, axis=-1), strict=True)
    return tf.concat([tf.nn.conv2d(*part, strides, padding.upper()) for part in parts], axis=-1)


@saved_as(keras.layers.Conv2D)
class SwappedConv2D(_Swapped, keras.layers.Conv2D):  # type: ignore[misc]
    """Keras's `Conv2D` whose kernel's gradient is computed by `convolve`, of few channels in C++.

    For the first layer of a net oneDNN's gradient of the kernel takes several times as long as its little arithmetic;
    in C++ one pass over the upstream gradients gives it, that of the bias, and that of a ReLU. Where there is no
    compiler, and on a GPU, it is computed as for other layers. Groups are computed each by itself, and as a depthwise
    convolution where each is one channel. Arguments, weights, gradients and the saved form are Keras's. Left to Keras:
    dilation, channels first, heights and widths that are not known.
    """


@saved_as(keras.layers.Conv1D)
class SwappedConv1D(_Swapped, keras.layers.Conv1D):  # type: ignore[misc]
    """Keras's `Conv1D`, as `SwappedConv2D` computes images of one row. Left to Keras: the same."""
