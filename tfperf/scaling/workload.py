"""What one worker does in a step: layers, with their gradients and shares of the work, and its seconds by batch."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import nnls

from tfperf.errors import TfperfError

__all__ = ["FORWARD_SHARE", "BatchTimes", "Layer", "Workload"]

FORWARD_SHARE = 1 / 3
"""Share of a step that the forward pass takes: the backward pass makes two products for each one of it."""

FLOAT32 = 4
"""Bytes of a gradient's element."""


@dataclass(frozen=True)
class Layer:
    """A layer as an exchange of gradients sees it.

    Attributes:
        gradients: bytes of each of its gradients.
        work: its share of the net's arithmetic; all shares together need not be 1.
    """

    gradients: tuple[int, ...]
    work: float


@dataclass(frozen=True)
class Workload:
    """One training step of a net on one worker.

    Attributes:
        name: of the net.
        layers: from the first to the last.
        batch: examples of a step of one worker.
        seconds: of that step when the worker is alone.
        forward_share: of these seconds that pass before the backward pass begins.
    """

    name: str
    layers: tuple[Layer, ...]
    batch: int
    seconds: float
    forward_share: float = FORWARD_SHARE

    def __post_init__(self) -> None:
        """Refuse what is no step."""
        if not (self.batch >= 1 and self.seconds > 0 and 0 <= self.forward_share < 1 and self.layers):
            raise ValueError(f"expected layers, a batch of at least 1 and seconds above 0. Received: {self!r}")

    @property
    def size(self) -> int:
        """Bytes of all gradients."""
        return sum(sum(layer.gradients) for layer in self.layers)

    @property
    def examples_per_second(self) -> float:
        """Examples that one worker alone trains on in a second."""
        return self.batch / self.seconds

    @property
    def forward(self) -> float:
        """Seconds of the forward pass."""
        return self.seconds * self.forward_share

    @property
    def gradients(self) -> tuple[tuple[int, float], ...]:
        """Bytes of each gradient, and the seconds from the start of the step to it; the last layer first."""
        whole = sum(layer.work for layer in self.layers) or 1.0
        backward = [(self.seconds - self.forward) * layer.work / whole for layer in reversed(self.layers)]
        ends = itertools.accumulate(backward, initial=self.forward)
        next(ends)
        return tuple(
            (size, end) for layer, end in zip(reversed(self.layers), ends, strict=True) for size in layer.gradients
        )

    def at_batch(self, batch: int, seconds: float) -> "Workload":
        """Return the same net with another batch, whose step takes `seconds`."""
        return replace(self, batch=batch, seconds=seconds)

    @classmethod
    def uniform(cls, name: str, size: int, tensors: int, batch: int, seconds: float) -> "Workload":
        """Return a net of which no more is known than the bytes of its gradients and their number: all are alike."""
        return cls(name, (Layer((max(1, size // tensors),), 1.0),) * tensors, batch, seconds)

    @classmethod
    def from_net(cls, net: Any, batch: int, seconds: float) -> "Workload":
        """Read the layers of a Keras model; work is the operations of convolutions and products, per example.

        Args:
            net: a built `keras.Model`.
            batch: examples of a step.
            seconds: of that step on one worker.

        Raises:
            TfperfError: the net has nothing to train.
        """
        layers = [
            Layer(tuple(FLOAT32 * _elements(weight.shape) for weight in reversed(weights)), _operations(layer, weights))
            for layer in net._flatten_layers(include_self=False)
            if (weights := [weight for weight in layer._trainable_variables if weight.trainable])
        ]
        if not layers:
            raise TfperfError(f"expected a net with weights to train. Received: {net.name}, which has none")
        return cls(net.name, tuple(layers), batch, seconds)


def _elements(shape: Sequence[int | None]) -> int:
    product = 1
    for length in shape:
        product *= length or 1
    return product


def _operations(layer: Any, weights: Sequence[Any]) -> float:
    """Multiplications of a layer for one example: each element of a kernel, once for each place."""
    kernel = max((_elements(weight.shape) for weight in weights), default=0)
    try:
        output = layer.output.shape
    except (AttributeError, ValueError):  # a subclass, or a layer called several times
        return float(kernel)
    if "Conv" in type(layer).__name__:
        return float(kernel * _elements(output[1:-1]))
    positions = _elements(output[1:-1]) if len(output) > 2 and "Dense" in type(layer).__name__ else 1
    return float(max(kernel * positions, _elements(output[1:])))


@dataclass(frozen=True)
class BatchTimes:
    """A step of a batch takes `fixed + each * batch` seconds.

    Attributes:
        fixed: seconds of a step, however small its batch: launching, updating the weights.
        each: seconds for each example.
        measured: the times that this is fitted to, by batch.
    """

    fixed: float
    each: float
    measured: tuple[tuple[int, float], ...] = ()

    def seconds(self, batch: float) -> float:
        """Return the seconds of a step."""
        return self.fixed + self.each * batch

    @classmethod
    def fit(cls, measured: Mapping[int, float]) -> "BatchTimes":
        """Fit both constants, neither negative, by least relative squares; one time alone has no fixed part.

        Args:
            measured: seconds of a step by batch.

        Raises:
            ValueError: there is no time, or one is not above 0.
        """
        batches, seconds = np.array(list(measured), float), np.array(list(measured.values()), float)
        if not len(batches) or not (np.isfinite(seconds) & (seconds > 0)).all() or not (batches >= 1).all():
            raise ValueError(f"expected seconds above 0 by batch. Received: {dict(measured)!r}")
        columns = np.stack([np.ones_like(batches), batches], axis=1) / seconds[:, np.newaxis]  # (batches, 2)
        if len(batches) == 1:
            columns[:, 0] = 0.0
        fixed, each = nnls(columns, np.ones_like(seconds))[0]
        return cls(float(fixed), float(each), tuple(sorted(measured.items())))
