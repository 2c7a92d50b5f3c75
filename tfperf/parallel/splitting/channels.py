"""A net that is split by channels over devices, and the bytes that it makes them exchange."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfperf.errors import TfperfError
from tfperf.parallel.splitting.graph import NetGraph, has_mask

__all__ = ["ChannelExchange", "ChannelSplit"]

Channels = list[np.ndarray] | None
"""Which of a tensor's last axis each device holds; None: all of them on each."""

POINTWISE = {
    keras.activations.elu,
    keras.activations.gelu,
    keras.activations.hard_sigmoid,
    keras.activations.leaky_relu,
    keras.activations.linear,
    keras.activations.relu,
    keras.activations.relu6,
    keras.activations.selu,
    keras.activations.sigmoid,
    keras.activations.silu,
    keras.activations.softplus,
    keras.activations.softsign,
    keras.activations.tanh,
}
"""Activations that need no other channel."""

CHANNELWISE = {
    keras.layers.Add,
    keras.layers.Average,
    keras.layers.AveragePooling2D,
    keras.layers.Dropout,
    keras.layers.GlobalAveragePooling2D,
    keras.layers.GlobalMaxPooling2D,
    keras.layers.LeakyReLU,
    keras.layers.Maximum,
    keras.layers.MaxPooling2D,
    keras.layers.Minimum,
    keras.layers.Multiply,
    keras.layers.ReLU,
    keras.layers.Subtract,
    keras.layers.UpSampling2D,
    keras.layers.ZeroPadding2D,
}
"""Layers without weights that compute each channel by itself."""


@dataclasses.dataclass(frozen=True)
class ChannelExchange:
    """What one layer makes the devices send to each other.

    `kind` is "inputs" (the batch is sent to all), "sum" (partial sums of all output channels are added and sent back),
    "gather" (the channels of all are put together) or "outputs" (put together on the first device).
    """

    layer: str
    kind: str
    bytes_per_example: int
    """Sent by all devices together, forward."""


@dataclasses.dataclass(frozen=True)
class _SplitNode:
    """One operation of the net, on all devices."""

    node: Any
    layers: list[Any]
    """One for each device, with its part of the weights."""
    channels: Channels = None
    """Channels of the outputs."""
    gathers: bool = False
    """Whether each device needs all channels of the inputs."""
    finish: list[Callable[[tf.Tensor], tf.Tensor]] | None = None
    """What each device does to the sum of the outputs, which are partial; None: they are no partial sums."""


class ChannelSplit:
    """A net whose Dense and Conv2D layers are split by channels: each device has a part of the weights of each layer.

    ::

        split = ChannelSplit(net, ["GPU:0", "GPU:1"])
        outputs = split(inputs)

    Layers go in pairs (Shoeybi et al. 2019, "Megatron-LM", https://arxiv.org/abs/1909.08053). The first is split by its
    output channels and needs nothing from the other devices; pointwise layers follow on each part. The second is split
    by its input channels, and the partial sums of the devices are added: one exchange for two layers. Other layers are
    computed on every device, after an exchange if a part does not suffice.

    The split is written in plain operations, so that each exchange is seen and counted. TensorFlow's DTensor would
    insert them itself; Keras 3 advises against it.
    """

    def __init__(self, net: keras.Model, devices: Sequence[str]) -> None:
        """Copy to each device its part of the weights.

        Args:
            net: Sequential or functional, with channels last. It is run in inference mode.
            devices: ["GPU:0", "GPU:1"]; logical devices of a CPU serve for trying it out.

        Raises:
            TfperfError: the net's layers are not known in advance, no layer has a channel for each device, or the net
                has masks, which do not pass between devices.
        """
        if len(devices) < 2:
            raise TfperfError(f"expected at least two devices. Received: {len(devices)}")
        self._graph, self.devices = NetGraph(net), tuple(devices)
        tensors = self._graph.inputs + [tensor for node in self._graph.nodes for tensor in node.outputs]
        if any(has_mask(tensor) or None in tensor.shape[1:] for tensor in tensors):
            raise TfperfError(
                "expected a net without masks whose shapes are known, but for the batch. "
                f"Received: '{net.name}', which has others"
            )
        self.split_layers: dict[str, str] = {}
        """Name -> "output channels" or "input channels"."""
        self._channels: dict[int, Channels] = dict.fromkeys(map(id, self._graph.inputs))
        self._gathered_before: set[int] = set()  # a tensor is sent to a device once
        self._exchanges = [self._exchange("inputs", "inputs", tensor) for tensor in self._graph.inputs]
        self._steps = [self._planned(node) for node in self._graph.nodes]
        outputs = {id(t): t for t in self._graph.outputs if self._channels[id(t)] is not None}
        self._exchanges += [
            self._exchange("outputs", "outputs", t) for key, t in outputs.items() if key not in self._gathered_before
        ]
        if not self.split_layers:
            raise TfperfError(
                f"expected a Dense or Conv2D layer with a channel for each of {len(devices)} devices. "
                f"Received: '{net.name}', which has none"
            )
        self._run = tf.function(self._forward, autograph=False)

    @property
    def exchanges(self) -> tuple[ChannelExchange, ...]:
        """What the devices send to each other, as the shapes of the tensors say."""
        return tuple(self._exchanges)

    @property
    def weight_bytes(self) -> list[int]:
        """Bytes of weights that lie on each device."""
        sizes = [0] * len(self.devices)
        for step in self._steps:
            for index, layer in enumerate(step.layers):
                sizes[index] += sum(_bytes(weight) for weight in getattr(layer, "weights", ()))
                if isinstance(finish := step.finish and step.finish[index], _BiasThenActivation):
                    sizes[index] += 0 if finish.bias is None else _bytes(finish.bias)
        return sizes

    def __call__(self, inputs: Any) -> Any:
        """Compute the outputs of the net, in inference mode.

        Args:
            inputs: what the net takes, (batch, ...) each.

        Returns:
            What the net returns, on the first device.
        """
        tensors = [
            keras.ops.convert_to_tensor(array, dtype=tensor.dtype)
            for array, tensor in zip(keras.tree.flatten(inputs), self._graph.inputs, strict=True)
        ]
        return keras.tree.pack_sequence_as(self._graph.output_structure, self._run(tensors))

    def count_bytes(self, batch: int) -> dict[str, int]:
        """Count the bytes that pass between devices in the graph that TensorFlow runs, forward.

        A tensor that operations on another device need is sent there once, as TensorFlow does.

        Args:
            batch: examples.

        Returns:
            Name of a layer, "inputs" or "outputs" -> bytes that all devices together send for it.
        """
        given = [tf.TensorSpec([batch, *tensor.shape[1:]], tensor.dtype) for tensor in self._graph.inputs]
        sent: dict[tuple[Any, str], str] = {}
        for operation in self._run.get_concrete_function(given).graph.get_operations():
            for tensor in operation.inputs:
                places = operation.device, tensor.op.device
                if all(places) and places[0] != places[1] and tensor.dtype != tf.resource:
                    sent.setdefault((tensor.ref(), operation.device), operation.name.partition("/")[0])
        counted: dict[str, int] = {}
        for (reference, _), scope in sent.items():
            step = scope.removeprefix("step_")
            name = self._steps[int(step)].node.operation.name if step.isdecimal() else step
            tensor = reference.deref()
            counted[name] = counted.get(name, 0) + tensor.shape.num_elements() * tensor.dtype.size
        return counted

    def _exchange(self, layer: str, kind: str, tensor: Any) -> ChannelExchange:
        """What passes of one tensor."""
        size, others = int(np.prod(tensor.shape[1:])) * tf.as_dtype(tensor.dtype).size, len(self.devices) - 1
        if kind == "outputs":
            channels = self._channels[id(tensor)]
            assert channels is not None
            return ChannelExchange(layer, kind, size * sum(map(len, channels[1:])) // tensor.shape[-1])
        return ChannelExchange(layer, kind, size * others * (2 if kind == "sum" else 1))  # a sum comes and goes

    def _planned(self, node: Any) -> _SplitNode:
        """Decide how the devices share one operation."""
        step = self._plan(node)
        if step.gathers:
            split = {id(t): t for t in node.input_tensors if self._channels[id(t)] is not None}
            new = [tensor for key, tensor in split.items() if key not in self._gathered_before]
            self._exchanges += [self._exchange(node.operation.name, "gather", tensor) for tensor in new]
            self._gathered_before |= set(split)
        if step.finish:
            self._exchanges.append(self._exchange(node.operation.name, "sum", node.outputs[0]))
        self._channels |= dict.fromkeys(map(id, node.outputs), step.channels)
        return step

    def _plan(self, node: Any) -> _SplitNode:
        layer, tensors = node.operation, node.input_tensors
        layouts = [self._channels[id(tensor)] for tensor in tensors]
        channels = layouts[0]
        if _is_matrix_product(layer):
            if channels is not None:
                return self._by_input_channels(node, channels)
            if layer.activation in POINTWISE and node.outputs[0].shape[-1] >= len(self.devices):
                return self._by_output_channels(node)
        if channels is not None and all(_equal(channels, other) for other in layouts[1:]):
            if _is_channelwise(layer):
                weights = [[weight[of_device] for weight in layer.get_weights()] for of_device in channels]
                return _SplitNode(node, self._copies(layer, weights, inputs=channels), channels)
            if type(layer) is keras.layers.Flatten and layer.data_format == "channels_last":
                nothing: list[list[np.ndarray]] = [[] for _ in channels]
                positions = np.arange(int(np.prod(tensors[0].shape[1:-1])))[:, None] * tensors[0].shape[-1]
                return _SplitNode(
                    node, self._copies(layer, nothing), [np.ravel(positions + of_device) for of_device in channels]
                )
        whole = [layer.get_weights() if isinstance(layer, keras.Layer) else []] * len(self.devices)
        return _SplitNode(node, self._copies(layer, whole), gathers=any(layout is not None for layout in layouts))

    def _by_output_channels(self, node: Any) -> _SplitNode:
        """Each device computes some output channels; it needs all inputs, and nothing of the others."""
        layer = node.operation
        self.split_layers[layer.name] = "output channels"
        channels = np.array_split(np.arange(node.outputs[0].shape[-1]), len(self.devices))
        weights = [[weight[..., of_device] for weight in layer.get_weights()] for of_device in channels]
        width = "units" if isinstance(layer, keras.layers.Dense) else "filters"
        return _SplitNode(
            node, self._copies(layer, weights, changes=lambda arrays: {width: arrays[0].shape[-1]}), channels
        )

    def _by_input_channels(self, node: Any, channels: list[np.ndarray]) -> _SplitNode:
        """Each device computes a part of each sum; the bias is added once, to the sum of all."""
        layer = node.operation
        self.split_layers[layer.name] = "input channels"
        kernel, *bias = layer.get_weights()
        parts = [[kernel[..., of_device, :]] for of_device in channels]
        linear = {"use_bias": False, "activation": "linear"}
        copies = self._copies(layer, parts, inputs=channels, changes=lambda _: linear)
        return _SplitNode(node, copies, finish=[_BiasThenActivation(layer, bias, device) for device in self.devices])

    def _copies(
        self,
        layer: Any,
        weights: Sequence[list[np.ndarray]],
        *,
        inputs: Channels = None,
        changes: Callable[[list[np.ndarray]], dict[str, Any]] = lambda _: {},
    ) -> list[Any]:
        """Copies of a layer on all devices, with their weights, their input channels, and a configuration to suit."""
        if not isinstance(layer, keras.Layer):
            return [layer] * len(self.devices)
        copies = []
        for index, (device, arrays) in enumerate(zip(self.devices, weights, strict=True)):
            with tf.device(device):
                copy = type(layer).from_config(layer.get_config() | changes(arrays))
                if arrays:
                    shapes = layer.get_build_config()
                    if inputs is not None:
                        shapes |= {"input_shape": (*shapes["input_shape"][:-1], len(inputs[index]))}
                    if not copy.built:  # a net is built by its configuration
                        copy.build_from_config(shapes)
                    copy.set_weights(arrays)
            copies.append(copy)
        return copies

    def _forward(self, inputs: list[tf.Tensor]) -> list[tf.Tensor]:
        """Compute the outputs, of flat lists; the scopes' names are those that `count_bytes` reads."""
        with tf.name_scope("step_inputs"):
            with tf.device(self.devices[0]):
                inputs = [tf.identity(tensor) for tensor in inputs]
            values = {id(t): self._on_all(value) for t, value in zip(self._graph.inputs, inputs, strict=True)}
        for index, step in enumerate(self._steps):
            with tf.name_scope(f"step_{index}"):
                values |= self._computed(step, values)
        with tf.name_scope("step_outputs"):
            return [self._gathered(values[id(t)], self._channels[id(t)], 1)[0] for t in self._graph.outputs]

    def _computed(self, step: _SplitNode, values: dict[int, list[tf.Tensor]]) -> dict[int, list[tf.Tensor]]:
        """The outputs of one step, on each device."""
        needed = {id(tensor): values[id(tensor)] for tensor in step.node.input_tensors}
        if step.gathers:
            needed = {key: self._gathered(parts, self._channels[key], len(parts)) for key, parts in needed.items()}
        outputs = []
        for index, (layer, device) in enumerate(zip(step.layers, self.devices, strict=True)):
            with tf.device(device):
                arguments, options = step.node.arguments.fill_in({key: parts[index] for key, parts in needed.items()})
                outputs.append(keras.tree.flatten(layer(*arguments, **options)))
        if step.finish:
            outputs = [[total] for total in self._summed([part for [part] in outputs], step.finish)]
        return dict(zip(map(id, step.node.outputs), map(list, zip(*outputs, strict=True)), strict=True))

    def _on_all(self, tensor: tf.Tensor) -> list[tf.Tensor]:
        """Send a tensor of the first device to all."""
        copies = []
        for device in self.devices:
            with tf.device(device):
                copies.append(tf.identity(tensor))
        return copies

    def _summed(self, parts: list[tf.Tensor], finish: list[Callable[[tf.Tensor], tf.Tensor]]) -> list[tf.Tensor]:
        """Add the parts on the first device, send the sum to all, and let each finish it."""
        with tf.device(self.devices[0]):
            total = tf.add_n(parts)
        finished = []
        for device, value, function in zip(self.devices, self._on_all(total), finish, strict=True):
            with tf.device(device):
                finished.append(function(value))
        return finished

    def _gathered(self, parts: list[tf.Tensor], channels: Channels, devices: int) -> list[tf.Tensor]:
        """Put the channels of all devices together, in their order, on the first so many devices."""
        if channels is None:
            return parts
        order = np.argsort(np.concatenate(channels))
        wholes = []
        for device in self.devices[:devices]:
            with tf.device(device):
                whole = tf.concat(parts, axis=-1)
                in_order = np.array_equal(order, np.arange(len(order)))
                wholes.append(whole if in_order else tf.gather(whole, order, axis=-1))
        return wholes


class _BiasThenActivation:
    """What is left of a layer that is split by its input channels, after its partial sums are added."""

    def __init__(self, layer: Any, bias: list[np.ndarray], device: str) -> None:
        self.activation = layer.activation
        with tf.device(device):
            self.bias = tf.Variable(bias[0]) if bias else None

    def __call__(self, total: tf.Tensor) -> tf.Tensor:
        if self.bias is not None:
            total += tf.cast(self.bias, total.dtype)
        return self.activation(total)


def _bytes(variable: Any) -> int:
    return int(np.prod(variable.shape)) * int(tf.as_dtype(variable.dtype).size)


def _is_matrix_product(layer: Any) -> bool:
    """Whether this is a layer that can be split by its channels."""
    if type(layer) is keras.layers.Dense:
        return True
    return type(layer) is keras.layers.Conv2D and layer.groups == 1 and layer.data_format == "channels_last"


def _is_channelwise(layer: Any) -> bool:
    """Whether each output channel needs the same channel of the inputs only."""
    if type(layer) is keras.layers.Activation:
        return layer.activation in POINTWISE
    if type(layer) is keras.layers.BatchNormalization:
        return bool(layer.axis == -1)
    return type(layer) in CHANNELWISE and getattr(layer, "data_format", "channels_last") == "channels_last"


def _equal(one: list[np.ndarray], other: Channels) -> bool:
    return other is not None and all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
