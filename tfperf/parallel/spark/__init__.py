"""A Spark cluster on this machine, reachable from nowhere else: for recipes that train on Spark."""

import importlib
from typing import TYPE_CHECKING, Any

from tfperf.parallel.private_network import in_private_network

if TYPE_CHECKING:
    from tfperf.parallel.spark.cluster import SparkCluster
    from tfperf.parallel.spark.node_function import NodeFunction
    from tfperf.parallel.spark.notes import Notes, Training
    from tfperf.parallel.spark.requirements import check_requirements

__all__ = [
    "NodeFunction",
    "Notes",
    "SparkCluster",
    "Training",
    "check_requirements",
    "in_private_network",
]

_HOMES = {
    "NodeFunction": "node_function",
    "Notes": "notes",
    "SparkCluster": "cluster",
    "Training": "notes",
    "check_requirements": "requirements",
}
"""Public name -> the module here; loaded when asked for, as a process leaves its network before NumPy is loaded."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
