"""Training on several devices, processes and machines."""

import importlib
from typing import Any

_NAMES = {
    "cluster": ("LocalCluster", "run_on_workers"),
    "key_value_store": ("KeyValueStore",),
    "limited_links": ("can_limit_links",),
    "private_network": ("in_private_network",),
    "ring": ("Ring", "RingMember"),
    "splitting.channels": ("ChannelExchange", "ChannelSplit"),
    "splitting.pipeline": ("Pipeline",),
    "splitting.timeline": ("StageTask", "Timeline", "pipeline_bubble", "pipeline_seconds"),
    "strategies": ("STRATEGIES", "Trained", "train"),
    "strategies.replicas": ("find_devices",),
}
"""Module here -> its public names; loaded when one is asked for, and TensorFlow with it only where it is needed."""

_HOMES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
