"""Showing what was measured: tables for terminals, plots for files."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfperf.report.plots import distribution_plot, interval_plot

__all__ = ["distribution_plot", "interval_plot"]

_HOMES = {"distribution_plot": "plots", "interval_plot": "plots"}


def __getattr__(name: str) -> Any:
    """Load what is asked for, and Matplotlib with it only where it is needed."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
