"""What more workers would buy: a cost model and a simulator of one synchronous training step."""

import importlib
from typing import Any

_NAMES = {
    "algorithms": (
        "ALGORITHMS",
        "Network",
        "allreduce_seconds",
        "best_algorithm",
        "bytes_sent",
        "crossing_size",
        "whole_tensor_servers",
    ),
    "calibrating": ("StepTimes", "mean_gradient", "measure_batch_times", "measure_link", "measure_step", "ring_link"),
    "constants": ("Range", "TRANSPORTS", "Transport"),
    "critical_batch": (
        "CRITICAL_BATCH",
        "fit_critical_batch",
        "part_gradients",
        "seconds_to_accuracy",
        "steps_to_accuracy",
    ),
    "forecast": ("Outlook", "Remedy", "outlook"),
    "links": ("Link", "LinkFit", "fit_link", "sweep"),
    "simulator": ("Simulation", "simulate", "simulate_failures", "young_interval"),
    "step": ("Cluster", "Collective", "Exchange", "Prediction", "Step", "expected_largest", "predict_step", "timeline"),
    "workload": ("BatchTimes", "Layer", "Workload"),
}
"""Module here -> its public names; loaded when one is asked for, and TensorFlow with it only where it is needed."""

_HOMES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
