"""A session in which one operation runs at a time on the CPU, and which tells how long each takes."""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import tensorflow as tf

__all__ = ["Session", "inside"]

TRACED = tf.compat.v1.RunOptions.SOFTWARE_TRACE
"""Trace what the executor does; the level above also starts profilers of devices, which takes longer."""


class Session:
    """A context manager around a session of TensorFlow's, with as many threads for an operation as this process has."""

    def __init__(self, graph: Any, *, rewritten: bool = True) -> None:
        """Open it.

        Args:
            graph: a `tf.Graph`.
            rewritten: whether TensorFlow may rewrite the graph, as it does for functions; else every operation runs as
                it is written, as in eager execution.
        """
        settings = tf.compat.v1.ConfigProto(
            inter_op_parallelism_threads=1,
            intra_op_parallelism_threads=tf.config.threading.get_intra_op_parallelism_threads(),
        )
        if not rewritten:
            settings.graph_options.rewrite_options.disable_meta_optimizer = True
            settings.graph_options.optimizer_options.opt_level = tf.compat.v1.OptimizerOptions.L0
        self._session = tf.compat.v1.Session(graph=graph, config=settings)

    def __enter__(self) -> Self:
        """Ready to run."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Free what it holds."""
        self._session.close()

    def run(self, targets: Sequence[Any], feeds: Mapping[Any, Any] | None = None) -> None:
        """Run operations, and what they need."""
        self._session.run(targets, feeds)

    def nodes(self, targets: Sequence[Any], feeds: Mapping[Any, Any] | None = None) -> dict[str, Any]:
        """The nodes, by name, of the graph that really runs."""
        told = self._run(targets, feeds, output_partition_graphs=True)
        return {node.name: node for graph in told.partition_graphs for node in graph.node}

    def traced(self, targets: Sequence[Any], feeds: Mapping[Any, Any] | None = None) -> list[Any]:
        """What each node did in a run, as TensorFlow's `NodeExecStats`; in loops, each turn."""
        told = self._run(targets, feeds, trace_level=TRACED).step_stats
        return [stats for device in told.dev_stats for stats in device.node_stats]

    def _run(self, targets: Sequence[Any], feeds: Mapping[Any, Any] | None, **options: Any) -> Any:
        told = tf.compat.v1.RunMetadata()
        self._session.run(targets, feeds, options=tf.compat.v1.RunOptions(**options), run_metadata=told)
        return told


def inside(stats: Any) -> float:
    """Seconds that a kernel took, from what a node did: without its dispatch."""
    return float(stats.op_end_rel_nanos - stats.op_start_rel_nanos) * 1e-9
