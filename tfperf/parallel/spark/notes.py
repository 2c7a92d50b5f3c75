"""What the ranks of a training bring home, so that ways to train can be compared where they were asked for."""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

__all__ = ["Notes", "Training", "set_weights"]

Rank = Sequence[NDArray[Any]]
"""What `Notes.all` gave on one rank."""


class Notes:
    """What one rank writes down while it trains; plain arrays, as they travel between processes."""

    def __init__(self, net: Any, early: int) -> None:
        """Watch a built `keras.Model`, whose weights after `early` steps are kept."""
        self._net = net
        self._early = early
        self._ends: list[float] = []
        self._early_weights: NDArray[Any] = np.array([])

    def callback(self) -> Any:
        """Calls `step` after each step of `fit`, as a `keras.callbacks.Callback`."""
        import keras

        return keras.callbacks.LambdaCallback(on_train_batch_end=lambda *_batch, **_logs: self.step())

    def step(self) -> None:
        """To be called at the end of each step."""
        self._ends.append(time.time())  # the one clock that all processes share
        if len(self._ends) == self._early:
            self._early_weights = self._weights()

    def all(self) -> tuple[NDArray[Any], ...]:
        """Ends of steps in seconds since 1970 (steps,), early weights (weights,), weights now (weights,)."""
        return np.array(self._ends), self._early_weights, self._weights()

    def _weights(self) -> NDArray[Any]:
        return np.concatenate([weight.ravel() for weight in self._net.get_weights()])


class Training(NamedTuple):
    """One training, as seen by the program that asked for it."""

    early: NDArray[Any]
    """Rank 0's weights after the early steps, (weights,)."""
    final: list[NDArray[Any]]
    """The weights of each rank at the end, (weights,) each."""
    seconds: dict[str, float]
    """Phase -> how long it took rank 0."""
    steps_per_second: float
    """At rank 0's median step, the first one left out: it traces."""

    @classmethod
    def ended_now(cls, start: float, ranks: Sequence[Rank]) -> Self:
        """Sum up a training asked for at `start`, seconds since 1970, whose results have arrived just now."""
        ends, early, _ = ranks[0]
        seconds = {
            "up to the first step": float(ends[0]) - start,
            "training": float(ends[-1] - ends[0]),
            "after the last step": time.time() - float(ends[-1]),
        }
        return cls(early, [final for _, _, final in ranks], seconds, 1 / float(np.median(np.diff(ends))))


def set_weights(net: Any, weights: NDArray[Any]) -> None:
    """Give a built `keras.Model` weights that `Notes` brought home, (weights,)."""
    shapes = [weight.shape for weight in net.get_weights()]
    parts = np.split(weights, np.cumsum([np.prod(shape, dtype=int) for shape in shapes])[:-1])
    net.set_weights([part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)])
