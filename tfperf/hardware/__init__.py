"""What a machine can give and a net asks for: ceilings, arithmetic and traffic, and what time is spent on."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfperf.cores import usable_cores
    from tfperf.hardware.counting import Work, graph_work, hlo_work, program_of
    from tfperf.hardware.kernels.traced import Traced

__all__ = ["Traced", "Work", "graph_work", "hlo_work", "program_of", "usable_cores"]

_HOMES = {
    "Traced": "hardware.kernels.traced",
    "Work": "hardware.counting",
    "graph_work": "hardware.counting",
    "hlo_work": "hardware.counting",
    "program_of": "hardware.counting",
    "usable_cores": "cores",
}


def __getattr__(name: str) -> Any:
    """Load what is asked for, and TensorFlow with it only where it is needed."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"tfperf.{_HOMES[name]}"), name)
