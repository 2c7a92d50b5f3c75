"""Which engines there are, and everything that is true of each."""

import functools
import importlib
import importlib.util
from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points, packages_distributions
from types import MappingProxyType
from typing import Any, NamedTuple

from tfperf.engines.plan import Plan, Precision, Transformation
from tfperf.errors import EngineError, in_one_line

__all__ = ["DEFAULTS", "ENGINES", "Engine", "find_engine", "known_engines", "missing"]

NOTHING: Mapping[Any, Any] = MappingProxyType({})

LAST = 99
"""A place after all that are given."""

KERAS_POLICIES: tuple[Precision, ...] = ("float32", "bfloat16", "float16")

OF_BATCH_NORM: tuple[Transformation, ...] = ("fold_batch_norm", "fuse_batch_norm")
"""Transformations of batch normalizations: all that engines take in which every variable is a constant already."""

OF_GRAPH: tuple[Transformation, ...] = (*OF_BATCH_NORM, "constant_weights")


class Engine(NamedTuple):
    """One way to run a net. The module here of the same name has the code.

    An engine without a format calls the net; its module has `build(servable, plan) -> Runner`. All others load what
    was converted, without Keras; their modules have `convert(servable, plan, examples, folder) -> proof` and
    `load(folder, signature, plan, proof) -> Runner`. Of those that are compiled, what `convert` wrote is not loaded but
    taken by `compile_converted(source, plan, folder, proof) -> proof`.

    What is not given has a default that suits an engine of another package.
    """

    name: str
    about: str
    precisions: tuple[Precision, ...]
    format: str | None = None
    """The format of what it loads. Engines of one format load the same folder."""
    fixed_batch: bool = False
    """Built for one batch size."""
    compiled: bool = False
    """What was converted is compiled by a program that needs no net: a process of its own does so, which takes long."""
    packages: tuple[str, ...] = ()
    """What must be installed beside tfperf's own requirements, as imported."""
    extra: str = ""
    """The extra of tfperf that installs these packages."""
    programs: Mapping[str, tuple[str, ...]] = NOTHING
    """A program that it needs, by its own name -> the distributions that hold it, any of which will do; the first is
    the one to install. `tfperf doctor` lists them."""
    converters: tuple[str, ...] = ("tensorflow",)
    """Distributions that convert for it: what was converted is made anew for another version of one of them, or of
    those that hold `packages`, of an engine of another package."""
    quantizers: Mapping[Precision, tuple[str, ...]] = NOTHING
    """Precision -> distributions that quantize for it, beside `converters`."""
    transformations: tuple[Transformation, ...] = ()
    """That make another net for it. Many converters fold batch normalizations, and freeze, by themselves."""
    loads_in_tensorflow: bool = False
    """Whether TensorFlow's Python loads what was converted for it."""
    exported_as: str = "saved_model"
    """The engine whose files are written for plans of this one, where it has no format and calls the net in Python."""
    kernels: str = ""
    """Whose kernels compute, where several engines call the same: what makes one faster makes the others, too. Empty:
    its own."""
    place_in_family: int = LAST
    """Its place among the engines with the same kernels: the first has the leanest calls, and is tried for all."""
    spends_time_in_python: bool = False
    """Whether Python takes most of its time, so that neither threads nor other settings change much."""
    called_as_function: bool = False
    """Whether each call goes through the Python of a tf.function."""
    probe_place: int | None = None
    """Its place among those that start quickly, or else are usual, and tell how many threads suit a net; None: it is
    none."""
    users_name: str = ""
    """What users call it, who have it without tfperf: every search looks at it. Empty: they do not."""
    baseline_place: int = LAST
    """Its place among those that speed-ups are told against."""
    module: str = ""
    """Where its code is; empty: in the module here of the same name."""
    release: str = ""
    """Name and version of the package that brings the engine, which `known_engines` fills in; empty: tfperf itself."""

    @property
    def family(self) -> str:
        """Whose kernels compute: the name of those that it shares, or its own."""
        return self.kernels or self.name

    @property
    def computes_in_precision(self) -> bool:
        """Whether all its kernels compute in a half precision, as Keras's policies have it, and do not only store it.

        Where the machine does not, they convert each number to float32 and back.
        """
        return self.precisions == KERAS_POLICIES

    def fixes_batch(self, transformations: Iterable[Transformation] = ()) -> bool:
        """Whether a plan with these transformations is made for one batch size, and must say for which."""
        return self.fixed_batch or "fixed_batch" in transformations

    def conversion_packages(self, precision: Precision) -> tuple[str, ...]:
        """Distributions whose code decides what is converted for it in a precision."""
        known = packages_distributions() if self.release else {}  # which takes long
        own = [name for package in self.packages for name in known.get(package, ())]
        return tuple(dict.fromkeys(["tfperf", *self.converters, *self.quantizers.get(precision, ()), *own]))

    def load_module(self) -> Any:
        """Its code."""
        return importlib.import_module(self.module or f"tfperf.engines.{self.name}")

    def check(self, plan: Plan) -> None:
        """Refuse a plan that this engine cannot make real.

        Raises:
            EngineError: the engine does not have the precision or a transformation, or its batch is open where it must
                be fixed.
        """
        if plan.precision not in self.precisions:
            known = ", ".join(self.precisions)
            raise EngineError(f"expected a precision of {self.name} ({known}). Received: {plan.precision}")
        if others := [one for one in plan.transformations if one not in self.transformations]:
            known = ", ".join(self.transformations) or "none"
            raise EngineError(f"expected transformations of {self.name} ({known}). Received: {', '.join(others)}")
        if self.fixes_batch() and plan.batch is None:
            raise EngineError(f"{self.name} is built for one batch size; give it, as in Plan(..., batch=1)")


ENGINES = (
    Engine(
        "predict",
        "net.predict(x)",
        ("float32",),
        kernels="TensorFlow",
        spends_time_in_python=True,
        users_name="predict",
        baseline_place=3,
    ),
    Engine(
        "eager",
        "net(x), operation by operation",
        KERAS_POLICIES,
        kernels="TensorFlow",
        spends_time_in_python=True,
        users_name="model(x)",
        baseline_place=0,
    ),
    Engine(
        "graph",
        "tf.function(net)",
        KERAS_POLICIES,
        transformations=OF_GRAPH,
        kernels="TensorFlow",
        place_in_family=2,
        called_as_function=True,
        probe_place=4,
        users_name="tf.function",
        baseline_place=1,
    ),
    Engine(
        "xla",
        "tf.function(net, jit_compile=True)",
        KERAS_POLICIES,
        transformations=OF_GRAPH,
        kernels="XLA",
        place_in_family=1,
        called_as_function=True,
    ),
    Engine(
        "saved_model",
        "the exported net",
        KERAS_POLICIES,
        format="saved_model",
        transformations=OF_GRAPH,
        loads_in_tensorflow=True,
        kernels="TensorFlow",
        place_in_family=1,
        called_as_function=True,
        baseline_place=2,
    ),
    Engine(
        "frozen",
        "a graph, its variables constants",
        KERAS_POLICIES,
        format="frozen",
        transformations=OF_BATCH_NORM,
        loads_in_tensorflow=True,
        kernels="TensorFlow",
        place_in_family=0,
        probe_place=3,
    ),
    Engine(
        "litert",
        "LiteRT, once TensorFlow Lite",
        ("float32", "float16", "int8", "int8_static"),
        format="tflite",
        packages=("ai_edge_litert",),
        extra="litert",
        programs={"LiteRT": ("ai-edge-litert",)},
        transformations=("fixed_batch",),
        probe_place=0,
    ),
    Engine(
        "onnx",
        "ONNX Runtime",
        ("float32", "int8", "int8_static"),
        format="onnx",
        packages=("onnxruntime", "onnx", "tf2onnx"),
        extra="onnx",
        programs={"ONNX Runtime": ("onnxruntime", "onnxruntime-gpu"), "tf2onnx": ("tf2onnx",)},
        converters=("tensorflow", "tf2onnx", "onnx", "onnxruntime"),
        transformations=("fixed_batch",),
        probe_place=1,
    ),
    Engine(
        "openvino",
        "OpenVINO",
        ("float32", "bfloat16", "float16", "int8_static"),
        format="openvino",
        packages=("openvino",),
        extra="openvino",
        programs={"OpenVINO": ("openvino",)},
        converters=("tensorflow", "openvino"),
        quantizers={"int8_static": ("tf2onnx", "onnx", "onnxruntime")},
        transformations=("fixed_batch",),
        probe_place=2,
    ),
    Engine(
        "c_api",
        "TensorFlow from C",
        KERAS_POLICIES,
        format="saved_model",
        transformations=OF_GRAPH,
        kernels="TensorFlow",
        place_in_family=3,
    ),
    Engine(
        "xla_aot",
        "XLA, compiled ahead of time",
        ("float32",),
        format="xla_aot",
        fixed_batch=True,
        compiled=True,
        transformations=OF_BATCH_NORM,
        kernels="XLA",
        place_in_family=0,
    ),
)
"""In the order of tables: from what users have to what is deployed."""

DEFAULTS = tuple(engine for engine in ENGINES if engine.users_name)
"""What users have without tfperf: model.predict(x), model(x), and tf.function(model)."""


@functools.cache
def known_engines() -> tuple[Engine, ...]:
    """The engines here, and those of installed packages: their entry points in the group "tfperf.engines".

    Raises:
        EngineError: a package's entry point is no `Engine` with a module, or has a name that another has.
    """
    engines = list(ENGINES)
    for entry in entry_points(group="tfperf.engines"):
        try:
            engine = entry.load()
        except Exception as error:
            raise EngineError(f"expected an engine in {entry.value}: {in_one_line(error)}") from error
        if not isinstance(engine, Engine) or not engine.module:
            raise EngineError(f"expected an Engine with a module in {entry.value}. Received: {engine!r:.200}")
        if engine.name in {known.name for known in engines}:
            raise EngineError(f"expected a new name for the engine in {entry.value}. Received: {engine.name}")
        engines.append(engine._replace(release=_release(entry)))
    return tuple(engines)


def _release(entry: EntryPoint) -> str:
    """Name and version of the package that an entry point belongs to; its value where no package is known."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else entry.value


def find_engine(name: str) -> Engine:
    """The engine of this name.

    Raises:
        EngineError: there is none.
    """
    for engine in known_engines():
        if engine.name == name:
            return engine
    known = ", ".join(engine.name for engine in known_engines())
    raise EngineError(f"expected an engine ({known}). Received: {name}")


def missing(engine: Engine) -> str | None:
    """What to install before this engine can be used, in one line; None: nothing."""
    absent = [package for package in engine.packages if importlib.util.find_spec(package) is None]
    if not absent:
        return None
    return f"{engine.name} is missing ({', '.join(absent)}); pip install 'tfperf[{engine.extra}]'"
