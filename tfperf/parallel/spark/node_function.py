"""A function for TensorFlowOnSpark's nodes whose results come back to the program that started them."""

import pickle
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

__all__ = ["NodeFunction"]


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
