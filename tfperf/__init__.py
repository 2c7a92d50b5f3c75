"""tfperf makes a Keras model fast on the machine you have, and proves it.

Importing this package imports neither TensorFlow nor NumPy; each public name is loaded when first used.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tfperf.data import Dataset, load
    from tfperf.nets import get_net

__all__ = [
    "Dataset",
    "get_net",
    "load",
]

# public name -> the module it comes from
_HOMES = {
    "Dataset": "tfperf.data",
    "get_net": "tfperf.nets",
    "load": "tfperf.data",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'tfperf' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
