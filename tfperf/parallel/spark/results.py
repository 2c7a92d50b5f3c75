"""What the ranks and nodes of a training on Spark bring home to the program that asked for it."""

import pickle
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from tfperf.errors import TfperfError

__all__ = ["NodeFunction", "Notes", "RankNotes", "Training"]

RankNotes = tuple[list[float], list[NDArray[Any]], list[NDArray[Any]]]
"""What `Notes.all` gave on one rank."""


class Notes:
    """What one rank writes down while it trains: numbers and arrays, as they travel between processes."""

    def __init__(self, early: int) -> None:
        """Keep the weights after so many steps, beside those at the end."""
        self._early = early
        self._ends: list[float] = []
        self._early_weights: list[NDArray[Any]] = []
        self._net: Any = None

    def callback(self) -> Any:
        """Give a `keras.callbacks.Callback` that calls `step` after each step of `fit`."""
        import keras

        callback: Any = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda *_batch, **_logs: self.step(callback.model)
        )
        return callback

    def step(self, net: Any) -> None:
        """Write down that a step of this `keras.Model` has just ended."""
        self._ends.append(time.time())  # the one clock that all processes share
        self._net = net
        if len(self._ends) == self._early:
            self._early_weights = net.get_weights()

    def all(self) -> tuple[list[float], list[NDArray[Any]], list[NDArray[Any]]]:
        """Give the ends of the steps in seconds since 1970, the early weights and the weights now."""
        return self._ends, self._early_weights, self._net.get_weights()


class Training(NamedTuple):
    """One training, as seen by the program that asked for it."""

    early: list[NDArray[Any]]
    """The weights after the early steps, as `set_weights` of a `keras.Model` takes them."""
    final: list[NDArray[Any]]
    """The weights at the end."""
    ranks: int
    """How many ranks there were; all of them have these final weights, bit by bit."""
    seconds: dict[str, float]
    """Phase -> how long it took rank 0."""
    steps_per_second: float
    """At rank 0's median step, the first one left out: it traces."""

    @classmethod
    def ended_now(cls, start: float, ranks: Sequence[RankNotes]) -> Self:
        """Sum up a training asked for at `start`, seconds since 1970, whose results have arrived just now.

        Raises:
            TfperfError: ranks have different weights at the end.
        """
        now = time.time()
        ends, early, final = ranks[0]
        odd = [rank for rank, (_, _, weights) in enumerate(ranks) if not all(map(np.array_equal, weights, final))]
        if odd:
            raise TfperfError(f"expected equal weights on all ranks, those of {odd} differ from rank 0's")
        seconds = {
            "up to the first step": ends[0] - start,
            "training": ends[-1] - ends[0],
            "after the last step": now - ends[-1],
        }
        return cls(early, final, len(ranks), seconds, 1 / float(np.median(np.diff(ends))))

    def figures(self, batch: int) -> dict[str, float]:
        """Give its figures by name, for a result file; `batch` images were in each step of all ranks together."""
        seconds = {f"seconds {phase}": seconds for phase, seconds in self.seconds.items()}
        return {"ranks with equal weights": self.ranks, "images/s": self.steps_per_second * batch} | seconds

    @property
    def overhead(self) -> float:
        """Seconds before the first step has ended and after the last one has."""
        return sum(self.seconds.values()) - self.seconds["training"]


class NodeFunction:
    """What `TFCluster.run` is given to run on each node; it drops what nodes return, so they write it to a folder.

    ::

        with NodeFunction(train) as train_on_node:
            TFCluster.run(context, train_on_node, arguments, 2, num_ps=0, master_node="chief").shutdown(timeout=-1)
            results = train_on_node.results()

    The folder is on this machine's disk, where the nodes of a `SparkCluster` are too.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        """Take the function, which each node calls with its arguments alone."""
        self._function = function
        self._folder = ""

    def __enter__(self) -> Self:
        """Make the folder."""
        self._folder = tempfile.mkdtemp(prefix="tfperf-nodes-")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder)

    def __call__(self, arguments: tuple[Any, ...], context: Any) -> None:
        """Call the function on a node, and write down its result; TensorFlowOnSpark calls this."""
        file = Path(self._folder, str(context.executor_id))
        file.write_bytes(pickle.dumps(self._function(*arguments)))

    def results(self) -> list[Any]:
        """Read what the nodes have returned, in the order of their executors."""
        files = sorted(Path(self._folder).iterdir(), key=lambda file: int(file.name))
        return [pickle.loads(file.read_bytes()) for file in files]  # noqa: S301  # this user's own folder
