"""What TensorFlow really runs of a function, and how long each kernel takes: its own trace of a graph."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from types import TracebackType
from typing import Any, Self

import tensorflow as tf
from numpy.typing import NDArray

from tfperf.errors import HardwareError
from tfperf.hardware.counting.graph_work import called_work
from tfperf.hardware.kernels.kernel_run import CompiledFunction, KernelRun, kernel_run
from tfperf.measure.clock import wall_clock

__all__ = ["RUNS", "Session", "Traced", "inside"]

RUNS = 100
"""Traced runs, of which each kernel's time is the shortest, as by itself; fewer where they last long."""

COST_RUNS = 20
"""For what tracing costs."""

FEWEST_RUNS = 7

SECONDS = 2.0
"""After which no further run is made."""

WARM_UPS = 3
"""Runs before them."""

CONTROL = frozenset({"_SOURCE", "_SINK"})
"""Nodes of the executor itself."""


TRACED = tf.compat.v1.RunOptions.SOFTWARE_TRACE
"""Trace what the executor does; the level above also starts profilers of devices, which takes longer."""


class Traced:
    """A concrete function in a session of its own, which can say how long each of its kernels takes.

    Its variables stay variables, with copies of their values, so that TensorFlow rewrites the graph as it does for
    whoever calls the function. One operation runs at a time, on the CPU. A context manager.
    """

    def __init__(self, function: Any, arrays: Sequence[NDArray[Any]] = (), *, rewritten: bool = True) -> None:
        """Build the graph.

        Args:
            function: concrete; takes the arrays by position.
            rewritten: whether TensorFlow may rewrite the graph, as it does for functions; else every operation runs as
                it is written, as in eager execution.

        Raises:
            HardwareError: it uses something other than variables and constants, as a lookup table.
        """
        values = {id(variable.handle): variable.numpy() for variable in function.variables}
        outside = {id(inner): outer for outer, inner in function.graph.captures}
        constants = {key: one.numpy() for key, one in outside.items() if one.dtype not in (tf.resource, tf.variant)}
        self._feeds: dict[Any, NDArray[Any]] = {}
        first_values: dict[Any, Any] = {}  # what takes a variable's first value -> the value
        initializers: list[Any] = []
        into = {}  # name of a tensor that the function takes -> what takes its place
        given = iter(arrays)
        graph = tf.Graph()
        with graph.as_default(), graph.device("/CPU:0"):
            for tensor in function.inputs:
                key = id(tensor)
                if key in constants:
                    into[tensor.name] = tf.constant(constants[key])
                elif key not in outside:
                    into[tensor.name] = tf.compat.v1.placeholder(tensor.dtype, tensor.shape)
                    self._feeds[into[tensor.name]] = next(given)
                elif id(outside[key]) in values:
                    value = values[id(outside[key])]
                    place = tf.compat.v1.placeholder(value.dtype, value.shape)
                    variable = tf.compat.v1.get_variable(f"variable_{len(first_values)}", initializer=place)
                    into[tensor.name] = variable.handle
                    first_values[place] = value
                    initializers.append(variable.initializer)
                else:
                    raise HardwareError(f"expected a net that keeps variables only, it has {outside[key]}"[:300])
            answers = tf.import_graph_def(
                function.graph.as_graph_def(),
                input_map=into,
                return_elements=[tensor.name for tensor in function.outputs],
                name="",
            )
            effects = [graph.get_operation_by_name(operation.name) for operation in function.graph.control_outputs]
        self._written = function.graph
        self._library = graph.as_graph_def().library
        self._targets = [*(tensor.op for tensor in answers), *effects]
        self._session = Session(graph, rewritten=rewritten)
        if initializers:
            self._session.run(
                initializers, first_values
            )  # all at once: each run of its own would prune the whole graph

    def __enter__(self) -> Self:
        """Ready to run."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Free the session."""
        self._session.__exit__(kind, error, trace)

    def operations(self, runs: int = RUNS) -> list[KernelRun]:
        """What runs, in the order in which it begins, each with the time inside of its kernel."""
        nodes: dict[str, Any] = {}
        for _ in range(WARM_UPS):
            nodes |= self._session.nodes(self._targets, self._feeds)
        seconds: dict[str, list[float]] = {}
        seen: dict[str, Any] = {}
        made = [[one for one in self._traced_after_another() if _is_kernel(one, nodes)] for _ in _enough(runs)]
        for stats in itertools.chain(*made):
            seen[stats.node_name] = stats
            seconds.setdefault(stats.node_name, []).append(inside(stats))
        given = {name: _outputs(stats) for name, stats in seen.items()}
        turns = {name: len(taken) / len(made) for name, taken in seconds.items()}
        best, usual = ({name: one(seconds[name]) * turns[name] for name in seen} for one in (min, median))
        # What disturbs a run falls on some kernels, in each run on others: a run takes longer than its kernels' medians
        run = median(sum(map(inside, one)) for one in made)
        whole = sum(usual.values())
        longer = run / whole if whole else 1.0
        return [
            kernel_run(
                nodes[name], nodes, given, best[name], usual[name] * longer, turns[name], self._compiled(nodes[name])
            )
            for name in sorted(seen, key=lambda name: int(seen[name].all_start_nanos))
        ]

    def _compiled(self, node: Any) -> CompiledFunction | None:
        """The function that a node calls, if XLA compiles it: what happens in there is in no trace."""
        if "_XlaMustCompile" not in node.attr or not node.attr["_XlaMustCompile"].b:
            return None
        try:
            return CompiledFunction(called_work(self._written.get_operation_by_name(node.name)), self._library)
        except (HardwareError, KeyError):  # its shapes are not known, or TensorFlow has renamed it
            return None

    def _traced_after_another(self) -> list[Any]:
        """What each node did in a call that comes right after another, as where it is used."""
        self._session.run(self._targets, self._feeds)
        return self._session.traced(self._targets, self._feeds)

    def tracing_cost(self, runs: int = COST_RUNS) -> float:
        """By which share a run that is traced takes longer than one that is not: medians, in turns."""
        plain, traced = [], []
        for _ in _enough(runs):
            start = wall_clock()
            self._session.run(self._targets, self._feeds)
            between = wall_clock()
            self._session.traced(self._targets, self._feeds)
            plain.append(between - start)
            traced.append(wall_clock() - between)
        return median(traced) / median(plain) - 1


class Session:
    """A session of TensorFlow's that runs one operation at a time on the CPU, with as many threads as this process has.

    A context manager.
    """

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


def _enough(runs: int) -> Iterator[None]:
    """One for each run, until there are so many, or the fewest that will do have taken long."""
    until = wall_clock() + SECONDS
    for made in range(runs):
        if made >= FEWEST_RUNS and wall_clock() > until:
            return
        yield


def _is_kernel(stats: Any, nodes: Mapping[str, Any]) -> bool:
    """Whether it is a node of the graph, and not one of the executor."""
    return stats.node_name in nodes and stats.node_name not in CONTROL


def _outputs(stats: Any) -> tuple[tf.TensorSpec, ...]:
    """Shapes and types of what a node gave, in the order of its outputs."""
    described = {output.slot: output.tensor_description for output in stats.output}
    return tuple(
        tf.TensorSpec([axis.size for axis in one.shape.dim], tf.dtypes.as_dtype(one.dtype))
        for _, one in sorted(described.items())
    )
