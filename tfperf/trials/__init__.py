"""Plans that run in processes of their own: started, checked, timed in turns, and each a row whatever it does.

Imports neither TensorFlow nor an engine.
"""

import importlib
from typing import TYPE_CHECKING, Any

from tfperf.trials.trial import Status, Trial

if TYPE_CHECKING:
    from tfperf.trials.process import Origin
    from tfperf.trials.survey import survey as compare_engines

__all__ = ["Origin", "Status", "Trial", "compare_engines"]

_HOMES = {"Origin": ("process", "Origin"), "compare_engines": ("survey", "survey")}
"""Public name -> the module here and its name there; loaded when asked for, as TensorFlow comes with them."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, inside = _HOMES[name]
    return getattr(importlib.import_module(f"{__name__}.{module}"), inside)
