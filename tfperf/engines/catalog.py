"""Which engines there are, and what each can do."""

import importlib.util
from typing import NamedTuple

from tfperf.engines.plan import Plan, Precision
from tfperf.errors import EngineError

__all__ = ["ENGINES", "Engine", "find_engine", "missing"]

KERAS_POLICIES: tuple[Precision, ...] = ("float32", "bfloat16", "float16")


class Engine(NamedTuple):
    """One way to run a net. The module here of the same name has the code.

    An engine without a format calls the net; its module has `build(servable, plan) -> Runner`. All others load what
    was converted, without Keras; their modules have `convert(servable, plan, examples, folder) -> proof` and
    `load(folder, signature, plan, proof) -> Runner`.
    """

    name: str
    about: str
    precisions: tuple[Precision, ...]
    format: str | None = None
    """Of what it loads. Engines of one format load the same folder."""
    fixed_batch: bool = False
    """Built for one batch size."""
    packages: tuple[str, ...] = ()
    """What must be installed beside tfperf's own requirements, as imported."""
    extra: str = ""
    """Of tfperf, with these packages."""

    def check(self, plan: Plan) -> None:
        """Refuse a plan that this engine cannot make real.

        Raises:
            EngineError: the engine does not have the precision, or its batch is open where it must be fixed.
        """
        if plan.precision not in self.precisions:
            known = ", ".join(self.precisions)
            raise EngineError(f"expected a precision of {self.name} ({known}). Received: {plan.precision}")
        if self.fixed_batch and plan.batch is None:
            raise EngineError(f"{self.name} is built for one batch size; give it, as in Plan(..., batch=1)")


ENGINES = (
    Engine("predict", "net.predict(x)", ("float32",)),
    Engine("eager", "net(x), operation by operation", KERAS_POLICIES),
    Engine("graph", "tf.function(net)", KERAS_POLICIES),
    Engine("xla", "tf.function(net, jit_compile=True)", KERAS_POLICIES),
    Engine("saved_model", "the exported net", KERAS_POLICIES, format="saved_model"),
    Engine("frozen", "a graph, its variables constants", KERAS_POLICIES, format="frozen"),
    Engine(
        "litert",
        "LiteRT, once TensorFlow Lite",
        ("float32", "float16", "int8", "int8_static"),
        format="tflite",
        packages=("ai_edge_litert",),
        extra="litert",
    ),
    Engine(
        "onnx",
        "ONNX Runtime",
        ("float32", "int8", "int8_static"),
        format="onnx",
        packages=("onnxruntime", "onnx", "tf2onnx"),
        extra="onnx",
    ),
    Engine(
        "openvino",
        "OpenVINO",
        ("float32", "bfloat16", "float16", "int8_static"),
        format="openvino",
        packages=("openvino",),
        extra="openvino",
    ),
    Engine("c_api", "TensorFlow from C", KERAS_POLICIES, format="saved_model"),
    Engine("xla_aot", "XLA, compiled ahead of time", ("float32",), format="xla_aot", fixed_batch=True),
)
"""In the order of tables: from what users have to what is deployed."""


def find_engine(name: str) -> Engine:
    """The engine of this name.

    Raises:
        EngineError: there is none.
    """
    for engine in ENGINES:
        if engine.name == name:
            return engine
    raise EngineError(f"expected an engine ({', '.join(engine.name for engine in ENGINES)}). Received: {name}")


def missing(engine: Engine) -> str | None:
    """What to install before this engine can be used, in one line; None: nothing."""
    absent = [package for package in engine.packages if importlib.util.find_spec(package) is None]
    if not absent:
        return None
    return f"{engine.name} is missing ({', '.join(absent)}); pip install 'tfperf[{engine.extra}]'"
