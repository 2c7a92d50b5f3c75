"""Every way to run a net, behind one interface: a plan in, a runner out. Imports neither TensorFlow nor an engine."""

import importlib
from typing import TYPE_CHECKING, Any

from tfperf.engines.building import build, load
from tfperf.engines.catalog import ENGINES, Engine, find_engine, missing
from tfperf.engines.checking import TOLERANCES, check_runner
from tfperf.engines.plan import PRECISIONS, TRANSFORMATIONS, Plan, Precision, Transformation
from tfperf.engines.runner import Runner

if TYPE_CHECKING:
    from tfperf.engines.process import Origin
    from tfperf.engines.survey import survey

__all__ = [
    "ENGINES",
    "PRECISIONS",
    "TOLERANCES",
    "TRANSFORMATIONS",
    "Engine",
    "Origin",
    "Plan",
    "Precision",
    "Runner",
    "Transformation",
    "build",
    "check_runner",
    "find_engine",
    "load",
    "missing",
    "survey",
]

_HOMES = {"Origin": "process", "survey": "survey"}
"""Names that are loaded when they are asked for, as TensorFlow comes with them."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value  # the module of the same name, once it is loaded, must not take its place
    return value
