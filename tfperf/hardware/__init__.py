"""What a machine can give and a net asks for: ceilings, arithmetic and traffic, and what time is spent on."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfperf.hardware.ceilings.disk import file_on_disk
    from tfperf.hardware.ceilings.loopback import measure_loopback
    from tfperf.hardware.counting import Work, graph_work, hlo_work, program_of
    from tfperf.hardware.kernels.traced import Traced
    from tfperf.hardware.ladder import RandomReads, check_numba, measure_ladder
    from tfperf.hardware.processor import MatrixUnit, matrix_unit
    from tfperf.system import usable_cores

__all__ = [
    "MatrixUnit",
    "RandomReads",
    "Traced",
    "Work",
    "check_numba",
    "file_on_disk",
    "graph_work",
    "hlo_work",
    "matrix_unit",
    "measure_ladder",
    "measure_loopback",
    "program_of",
    "usable_cores",
]

_HOMES = {
    "MatrixUnit": "hardware.processor",
    "RandomReads": "hardware.ladder",
    "Traced": "hardware.kernels.traced",
    "Work": "hardware.counting",
    "check_numba": "hardware.ladder",
    "file_on_disk": "hardware.ceilings.disk",
    "graph_work": "hardware.counting",
    "hlo_work": "hardware.counting",
    "matrix_unit": "hardware.processor",
    "measure_ladder": "hardware.ladder",
    "measure_loopback": "hardware.ceilings.loopback",
    "program_of": "hardware.counting",
    "usable_cores": "system",
}


def __getattr__(name: str) -> Any:
    """Load what is asked for, and TensorFlow with it only where it is needed."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"tfperf.{_HOMES[name]}"), name)
