"""tfperf makes a Keras model fast on the machine you have, and proves it.

Importing this package imports neither TensorFlow nor NumPy; each public name is loaded when first used.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tfperf.cookbook import Flag, Recipe
    from tfperf.data import Dataset, load
    from tfperf.errors import TfperfError
    from tfperf.explaining import Explanation, explain
    from tfperf.exports import export, verify
    from tfperf.measure import Agreement, Benchmark, Comparison, Measurement, Ratio, Verdict, check_agreement, compare
    from tfperf.nets import get_net
    from tfperf.tuning import Tuned, TunedTraining, load_deployed, tune, tune_training

__all__ = [
    "Agreement",
    "Benchmark",
    "Comparison",
    "Dataset",
    "Explanation",
    "Flag",
    "Measurement",
    "Ratio",
    "Recipe",
    "TfperfError",
    "Tuned",
    "TunedTraining",
    "Verdict",
    "check_agreement",
    "compare",
    "explain",
    "export",
    "get_net",
    "load",
    "load_deployed",
    "tune",
    "tune_training",
    "verify",
]

_HOMES = {
    "Dataset": "data",
    "Explanation": "explaining",
    "Flag": "cookbook",
    "Recipe": "cookbook",
    "TfperfError": "errors",
    "explain": "explaining",
    "export": "exports",
    "get_net": "nets",
    "load": "data",
    "load_deployed": "tuning",
    "Tuned": "tuning",
    "TunedTraining": "tuning",
    "tune": "tuning",
    "tune_training": "tuning",
    "verify": "exports",
}
"""Public name -> the room it is loaded from; the others come from `measure`."""


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'tfperf' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"tfperf.{_HOMES.get(name, 'measure')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
