"""Showing what was measured: tables for terminals, plots for files."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfperf.report.engines import cost_table, survey_plots
    from tfperf.report.hardware import ladder_plot
    from tfperf.report.plots import distribution_plot, interval_plot

__all__ = ["cost_table", "distribution_plot", "interval_plot", "ladder_plot", "survey_plots"]

_HOMES = {
    "cost_table": "engines",
    "distribution_plot": "plots",
    "interval_plot": "plots",
    "ladder_plot": "hardware",
    "survey_plots": "engines",
}


def __getattr__(name: str) -> Any:
    """Load what is asked for, and Matplotlib with it only where it is needed."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
