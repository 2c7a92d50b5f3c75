"""What a model waits for, compute, bandwidth or overhead, and what would help: `tfperf.explain`."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfperf.explaining.explaining import explain
    from tfperf.explaining.explanation import Explanation

__all__ = ["Explanation", "explain"]

_HOMES = {"Explanation": "explanation", "explain": "explaining"}


def __getattr__(name: str) -> Any:
    """Load what is asked for, and TensorFlow with it only where it is needed."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
