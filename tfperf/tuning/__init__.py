"""From a model to the fastest correct way to run it, with the proof and the files: `tfperf.tune`."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfperf.tuning.deploying import load_deployed
    from tfperf.tuning.training import tune_training
    from tfperf.tuning.tuned import Tuned
    from tfperf.tuning.tuned_training import TunedTraining
    from tfperf.tuning.tuning import tune

__all__ = ["Tuned", "TunedTraining", "load_deployed", "tune", "tune_training"]

_HOMES = {
    "Tuned": "tuned",
    "TunedTraining": "tuned_training",
    "load_deployed": "deploying",
    "tune": "tuning",
    "tune_training": "training",
}


def __getattr__(name: str) -> Any:
    """Load what is asked for, and TensorFlow with it only where it is needed."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
