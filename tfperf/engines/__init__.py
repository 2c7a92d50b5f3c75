"""Every way to run a net, behind one interface: a plan in, a runner out. Imports neither TensorFlow nor an engine."""

import importlib
from typing import TYPE_CHECKING, Any

from tfperf.engines.building import build, load
from tfperf.engines.catalog import ENGINES, Engine, find_engine, missing
from tfperf.engines.checking import TOLERANCES, check_runner
from tfperf.engines.plan import PRECISIONS, TRANSFORMATIONS, Plan, Precision, Transformation
from tfperf.engines.runner import Runner

if TYPE_CHECKING:
    from tfperf.engines.litert import load as load_litert
    from tfperf.engines.onnx import load as load_onnx
    from tfperf.engines.onnx import write_onnx

__all__ = [
    "ENGINES",
    "PRECISIONS",
    "TOLERANCES",
    "TRANSFORMATIONS",
    "Engine",
    "Plan",
    "Precision",
    "Runner",
    "Transformation",
    "build",
    "check_runner",
    "find_engine",
    "load",
    "load_litert",
    "load_onnx",
    "missing",
    "write_onnx",
]

_HOMES = {
    "load_litert": ("litert", "load"),
    "load_onnx": ("onnx", "load"),
    "write_onnx": ("onnx", "write_onnx"),
}
"""Public name -> the module here and its name there; loaded when asked for, as TensorFlow comes with them."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, inside = _HOMES[name]
    return getattr(importlib.import_module(f"{__name__}.{module}"), inside)
