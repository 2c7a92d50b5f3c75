"""The batch normalizations of a net in inference, folded into the layers before them, or as one operation each."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from numpy.typing import NDArray

from tfperf.errors import ExportError

__all__ = ["BatchNorms", "Calls", "calling", "find_batch_norms", "fold", "fuse"]

Calls = Mapping[Any, Callable[..., Any]]
"""Layer -> what it does in place of its own `call`."""

DENSE = (layers.Dense,)
CONVOLUTIONS = (layers.Conv1D, layers.Conv2D, layers.Conv3D)
DEPTHWISE = (layers.DepthwiseConv1D, layers.DepthwiseConv2D)
SEPARABLE = (layers.SeparableConv1D, layers.SeparableConv2D)
TRANSPOSED = (layers.Conv1DTranspose, layers.Conv2DTranspose, layers.Conv3DTranspose)
LINEAR = (*DENSE, *CONVOLUTIONS, *DEPTHWISE, *SEPARABLE, *TRANSPOSED)
"""The layers that a normalization can be folded into. Of these classes themselves: a subclass may do anything."""

FUSED_TYPES = (tf.float32, tf.bfloat16, tf.float16)
"""That FusedBatchNormV3 takes, with statistics in float32."""


class BatchNorms(NamedTuple):
    """Those of a net that a trace of it has met."""

    foldable: list[tuple[Any, Any]]
    """Layer, and the normalization of its outputs, which nothing else uses."""
    fusable: list[Any]
    """Those that one operation can compute, whether they are foldable or not."""
    total: int
    """The number of batch normalizations in the net."""


class _Call(NamedTuple):
    """One call of a layer, in a trace."""

    given: Any
    made: Any
    reader: Any
    """The one operation with which a normalization reads what it is given."""
    trains: bool


def find_batch_norms(net: keras.Model, trace: Callable[[], Any]) -> BatchNorms:
    """See which batch normalizations a net calls, and with what.

    Args:
        net: functional, sequential, or a subclass; it is left as it was.
        trace: a function without arguments that traces the net, to a concrete function.
    """
    norms = [layer for layer in net._flatten_layers() if isinstance(layer, layers.BatchNormalization)]
    watched = [layer for layer in net._flatten_layers() if _is_plain(layer)]
    calls: dict[Any, list[_Call]] = {layer: [] for layer in watched}
    with calling({layer: _watching(layer, calls[layer]) for layer in watched}):
        graph = trace().graph
    makers = {
        id(one.made): layer for layer, (one, *more) in _called(calls) if not more and _is_linear(layer)
    }  # of tensors that `calls` keeps alive, so that no two have the same id
    foldable, fusable = [], []
    for norm, seen in _called(calls):
        # Functions within the net keep their own traces, which would then be those of another net
        if type(norm) is not layers.BatchNormalization or not all(_normalizes_last(norm, one, graph) for one in seen):
            continue
        first, *more = seen
        maker = makers.get(id(first.given))
        if maker is not None and not more and first.given.consumers() == [first.reader]:
            foldable.append((maker, norm))
        if all(one.given.shape.rank == 4 and one.given.dtype in FUSED_TYPES for one in seen):
            fusable.append(norm)
    return BatchNorms(foldable=foldable, fusable=fusable, total=len(norms))


@contextlib.contextmanager
def calling(calls: Calls) -> Iterator[None]:
    """Have layers do something else meanwhile where their `call` is called."""
    try:
        for layer, call in calls.items():
            layer.__dict__["call"] = call  # beside Keras, which looks into what is assigned to a layer
        yield
    finally:
        for layer in calls:
            layer.__dict__.pop("call", None)


def fold(layer: Any, norm: Any) -> Calls:
    """The calls of a foldable pair, with the normalization as part of the layer's kernel and bias.

    Both are computed now, in float64, and kept in variables of their own, in the layer's type.
    """
    scale, shift = _scale_and_shift(norm)
    kernel = layer.pointwise_kernel if type(layer) in SEPARABLE else layer.kernel
    along: tuple[int, ...] = (-1,)  # the channels that come out are the kernel's last axis
    if type(layer) in DEPTHWISE:
        along = tuple(kernel.shape[-2:])  # (channels, outputs of each)
    elif type(layer) in TRANSPOSED:
        along = (-1, 1)
    values = [(kernel, _variable(_float64(kernel) * scale.reshape(along), kernel.dtype))]
    added = None
    if layer.use_bias:
        values.append((layer.bias, _variable(_float64(layer.bias) * scale + shift, layer.bias.dtype)))
    else:
        added = _variable(shift, kernel.dtype)
    own, made = layer.call, None

    def call_layer(inputs: Any, **others: Any) -> Any:
        nonlocal made
        with keras.StatelessScope(state_mapping=[(own_one, tf.convert_to_tensor(one)) for own_one, one in values]):
            made = own(inputs, **others)
        if added is not None:
            made = tf.nn.bias_add(made, tf.cast(added, made.dtype))
        return made

    def call_norm(inputs: Any, **_: Any) -> Any:
        nonlocal made
        if inputs is not made:
            raise ExportError(
                f"expected '{norm.name}' to follow '{layer.name}', as in the net's first trace; it does not"
            )
        made = None
        return inputs

    return {layer: call_layer, norm: call_norm}


def fuse(norm: Any) -> Calls:
    """The call of a fusable normalization as one operation, of its variables as they are when it is called."""

    def call(inputs: Any, **_: Any) -> Any:
        mean, variance = (keras.ops.cast(one, "float32") for one in (norm.moving_mean, norm.moving_variance))
        fused = tf.raw_ops.FusedBatchNormV3(
            x=inputs,
            scale=keras.ops.cast(norm.gamma, "float32") if norm.scale else tf.ones_like(mean),
            offset=keras.ops.cast(norm.beta, "float32") if norm.center else tf.zeros_like(mean),
            mean=mean,
            variance=variance,
            epsilon=norm.epsilon,
            is_training=False,
        )
        return tf.cast(fused.y, norm.compute_dtype)

    return {norm: call}


def _is_plain(layer: Any) -> bool:
    """Whether it is of a known class, and does what the class says."""
    return type(layer) in (*LINEAR, layers.BatchNormalization) and "call" not in vars(layer)


def _is_linear(layer: Any) -> bool:
    """Whether its outputs are inputs times kernel, plus bias, channels last."""
    return (
        type(layer) in LINEAR
        and layer.activation in (None, keras.activations.linear)
        and getattr(layer, "data_format", "channels_last") == "channels_last"
        and not getattr(layer, "lora_enabled", False)
    )


def _normalizes_last(norm: Any, call: _Call, graph: Any) -> bool:
    """Whether a call, in this graph itself, normalizes the last axis with the moving statistics."""
    return call.reader.graph is graph and not call.trains and norm.axis in (-1, call.given.shape.rank - 1)


def _called(calls: Mapping[Any, list[_Call]]) -> Iterator[tuple[Any, list[_Call]]]:
    return ((layer, seen) for layer, seen in calls.items() if seen)


def _watching(layer: Any, seen: list[_Call]) -> Callable[..., Any]:
    """Its own call, noted."""
    own, is_norm = layer.call, type(layer) is layers.BatchNormalization

    def call(inputs: Any, **others: Any) -> Any:
        read = tf.identity(inputs) if is_norm else inputs
        made = own(read, **others)
        training = others.get("training")
        trains = layer.trainable and training is not None and training is not False
        seen.append(_Call(given=inputs, made=made, reader=read.op if is_norm else None, trains=trains))
        return made

    return call


def _scale_and_shift(norm: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """What it multiplies by, and then adds: (channels,) each."""
    scale = 1 / np.sqrt(_float64(norm.moving_variance) + norm.epsilon)
    if norm.scale:
        scale = scale * _float64(norm.gamma)
    shift = -_float64(norm.moving_mean) * scale
    return scale, shift + _float64(norm.beta) if norm.center else shift


def _float64(variable: Any) -> NDArray[np.float64]:
    return np.asarray(variable.numpy(), "float64")


def _variable(values: NDArray[np.float64], dtype: str) -> tf.Variable:
    return tf.Variable(tf.cast(values, dtype), trainable=False)
