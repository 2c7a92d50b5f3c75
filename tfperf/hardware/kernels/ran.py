"""What TensorFlow really runs of a function, and how long each kernel takes: its own trace of a graph."""

import re
from collections.abc import Mapping, Sequence
from statistics import median
from types import TracebackType
from typing import Any, NamedTuple, Self

import tensorflow as tf
from numpy.typing import NDArray

from tfperf.errors import HardwareError
from tfperf.measure.clock import wall_clock

__all__ = ["RUNS", "Ran", "Traced"]

RUNS = 30
"""Traced runs, of which each kernel's time is the median."""

WARM_UPS = 3
"""Runs before them."""

TRACED = tf.compat.v1.RunOptions.SOFTWARE_TRACE
"""Of what the executor does; the level above also starts profilers of devices, which takes longer."""

CONTROL = frozenset({"_SOURCE", "_SINK"})
"""Nodes of the executor itself."""

VARIANTS = re.compile(r"^_(?:Mkl(?:Native)?(?:Fused)?|Fused)(?=[A-Z])|WithBias$|(?<=Norm)Ex$")
"""What TensorFlow and oneDNN put around the name of a kernel that does the same, and perhaps more."""

NORMS = ("BatchNorm", "BatchNormV2", "BatchNormV3")
"""What that leaves of batch normalization, which has its "Fused" from the beginning."""


class Ran(NamedTuple):
    """One operation as it ran, with the face of a `tf.Operation` that `flops_of` and `predict` look at."""

    name: str
    kernel: str
    """As TensorFlow calls it, "_MklNativeFusedConv2D"."""
    inputs: tuple[tf.TensorSpec, ...]
    outputs: tuple[tf.TensorSpec, ...]
    attributes: Mapping[str, Any]
    seconds: float
    """Inside of the kernel: the median over the traced runs."""

    @property
    def type(self) -> str:
        """The operation that it does first: "Conv2D"."""
        plain = VARIANTS.sub("", self.kernel)
        return "FusedBatchNormV3" if plain in NORMS else plain

    @property
    def fused(self) -> tuple[str, ...]:
        """What it does beside that: ("BiasAdd", "Relu")."""
        if self.kernel.endswith("WithBias"):
            return ("BiasAdd",)
        listed = self.attributes["fused_ops"].list.s if "fused_ops" in self.attributes else ()
        return tuple(one.decode() for one in listed)

    def get_attr(self, name: str) -> Any:
        """An attribute, as a `tf.Operation` gives it.

        Raises:
            ValueError: it has none of this name.
        """
        if name not in self.attributes:
            raise ValueError(f"expected an attribute of {self.kernel}. Received: {name}")
        value = self.attributes[name]
        kind = value.WhichOneof("value")
        if kind == "list":
            return list(value.list.i or value.list.s or value.list.f or value.list.b)
        return getattr(value, kind)


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
        first_values: list[tuple[Any, dict[Any, Any]]] = []
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
                    first_values.append((variable.initializer, {place: value}))
                else:
                    raise HardwareError(f"expected a net that keeps variables only, it has {outside[key]}"[:300])
            answers = tf.import_graph_def(
                function.graph.as_graph_def(),
                input_map=into,
                return_elements=[tensor.name for tensor in function.outputs],
                name="",
            )
            effects = [graph.get_operation_by_name(operation.name) for operation in function.graph.control_outputs]
        self._targets = [*(tensor.op for tensor in answers), *effects]
        settings = tf.compat.v1.ConfigProto(
            inter_op_parallelism_threads=1,
            intra_op_parallelism_threads=tf.config.threading.get_intra_op_parallelism_threads(),
        )
        if not rewritten:
            settings.graph_options.rewrite_options.disable_meta_optimizer = True
            settings.graph_options.optimizer_options.opt_level = tf.compat.v1.OptimizerOptions.L0
        self._session = tf.compat.v1.Session(graph=graph, config=settings)
        for initializer, value in first_values:
            self._session.run(initializer, value)

    def __enter__(self) -> Self:
        """Ready to run."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Free the session."""
        self._session.close()

    def operations(self, runs: int = RUNS) -> list[Ran]:
        """What runs, in the order in which it begins, each with the time inside of its kernel."""
        nodes: dict[str, Any] = {}
        for _ in range(WARM_UPS):
            for graph in self._run(output_partition_graphs=True).partition_graphs:
                nodes |= {node.name: node for node in graph.node}
        seconds: dict[str, list[float]] = {}
        seen: dict[str, Any] = {}
        for _ in range(runs):
            told = self._run(trace_level=TRACED).step_stats
            for stats in (stats for device in told.dev_stats for stats in device.node_stats):
                seen[stats.node_name] = stats
                seconds.setdefault(stats.node_name, []).append(
                    (stats.op_end_rel_nanos - stats.op_start_rel_nanos) * 1e-9
                )
        given = {name: _outputs(stats) for name, stats in seen.items()}
        return [
            Ran(
                name=name,
                kernel=nodes[name].op,
                inputs=_inputs(nodes[name], given),
                outputs=given[name],
                attributes=nodes[name].attr,
                seconds=median(seconds[name]) * len(seconds[name]) / runs,  # in a loop it has several turns a run
            )
            for name, stats in sorted(seen.items(), key=lambda pair: int(pair[1].all_start_nanos))
            if name in nodes and name not in CONTROL
        ]

    def tracing_cost(self, runs: int = RUNS) -> float:
        """By which share a run that is traced takes longer than one that is not: medians, in turns."""
        plain, traced = [], []
        for _ in range(runs):
            start = wall_clock()
            self._session.run(self._targets, self._feeds)
            between = wall_clock()
            self._run(trace_level=TRACED)
            plain.append(between - start)
            traced.append(wall_clock() - between)
        return median(traced) / median(plain) - 1

    def _run(self, **options: Any) -> Any:
        told = tf.compat.v1.RunMetadata()
        self._session.run(self._targets, self._feeds, options=tf.compat.v1.RunOptions(**options), run_metadata=told)
        return told


def _outputs(stats: Any) -> tuple[tf.TensorSpec, ...]:
    """Shapes and types of what a node gave, in the order of its outputs."""
    described = {output.slot: output.tensor_description for output in stats.output}
    return tuple(
        tf.TensorSpec([axis.size for axis in one.shape.dim], tf.dtypes.as_dtype(one.dtype))
        for _, one in sorted(described.items())
    )


def _inputs(node: Any, given: Mapping[str, Sequence[tf.TensorSpec]]) -> tuple[tf.TensorSpec, ...]:
    """What it took, from those that gave it."""
    taken = []
    for name in node.input:
        source, _, place = name.partition(":")
        specs = given.get(source, ())
        if not name.startswith("^") and int(place or 0) < len(specs):
            taken.append(specs[int(place or 0)])
    return tuple(taken)
