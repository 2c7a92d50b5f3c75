"""Training on several devices, processes and machines."""

import importlib
from typing import Any

__all__ = [
    "STRATEGIES",
    "ChannelExchange",
    "ChannelSplit",
    "KeyValueStore",
    "LocalCluster",
    "Pipeline",
    "Ring",
    "RingMember",
    "StageTask",
    "Timeline",
    "Trained",
    "can_limit_links",
    "find_devices",
    "in_private_network",
    "pipeline_bubble",
    "pipeline_seconds",
    "run_on_workers",
    "train",
]

_HOMES = {
    "can_limit_links": "limited_links",
    "ChannelExchange": "splitting.channels",
    "ChannelSplit": "splitting.channels",
    "find_devices": "strategies.devices",
    "in_private_network": "private_network",
    "KeyValueStore": "key_value_store",
    "LocalCluster": "cluster",
    "Pipeline": "splitting.pipeline",
    "pipeline_bubble": "splitting.timeline",
    "pipeline_seconds": "splitting.timeline",
    "Ring": "ring",
    "RingMember": "ring",
    "run_on_workers": "cluster",
    "StageTask": "splitting.timeline",
    "STRATEGIES": "strategies",
    "Timeline": "splitting.timeline",
    "train": "strategies",
    "Trained": "strategies",
}
"""Public name -> the module here; loaded when asked for, and TensorFlow with it only where it is needed."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
