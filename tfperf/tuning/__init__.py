"""From a model to the fastest correct way to run it, with the proof and the files: `tfperf.tune`."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfperf.tuning.deploying import load_deployed
    from tfperf.tuning.tuned import Tuned
    from tfperf.tuning.tuning import tune

__all__ = ["Tuned", "load_deployed", "tune"]

_HOMES = {"Tuned": "tuned", "load_deployed": "deploying", "tune": "tuning"}


def __getattr__(name: str) -> Any:
    """Load what is asked for, and TensorFlow with it only where it is needed."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
