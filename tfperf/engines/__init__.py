"""Every way to run a net, behind one interface: a plan in, a runner out. Imports neither TensorFlow nor an engine."""

from tfperf.engines.building import build, load
from tfperf.engines.catalog import ENGINES, Engine, find_engine, missing
from tfperf.engines.checking import TOLERANCES, check_runner
from tfperf.engines.plan import PRECISIONS, TRANSFORMATIONS, Plan, Precision, Transformation
from tfperf.engines.runner import Runner

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
    "missing",
]
