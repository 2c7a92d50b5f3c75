"""A Spark cluster on this machine, reachable from nowhere else: for recipes that train on Spark."""

import importlib
from typing import Any

from tfperf.parallel.private_network import in_private_network

_NAMES = {
    "cluster": ("SparkCluster",),
    "requirements": ("check_requirements",),
    "results": ("NodeFunction", "Notes", "Training"),
}
"""Module here -> its public names; loaded when one is asked for, as a process leaves its network before NumPy comes."""

_HOMES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted([*_HOMES, in_private_network.__name__])


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
