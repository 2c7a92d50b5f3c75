"""Exports: nets as SavedModels that are whole, say what they are, and can be checked."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfperf.exports.arrays import read_inputs
    from tfperf.exports.manifest import Manifest
    from tfperf.exports.opening import open_model
    from tfperf.exports.servable import Servable
    from tfperf.exports.signature import Signature, TensorForm
    from tfperf.exports.verifying import Verified, verify
    from tfperf.exports.writing import export
    from tfperf.files import writing_folder_whole

__all__ = [
    "Manifest",
    "Servable",
    "Signature",
    "TensorForm",
    "Verified",
    "export",
    "open_model",
    "read_inputs",
    "verify",
    "writing_folder_whole",
]

_HOMES = {
    "Manifest": "manifest",
    "Servable": "servable",
    "Signature": "signature",
    "TensorForm": "signature",
    "Verified": "verifying",
    "export": "writing",
    "open_model": "opening",
    "read_inputs": "arrays",
    "verify": "verifying",
}


def __getattr__(name: str) -> Any:
    """Load what is asked for, and TensorFlow with it only where it is needed."""
    if name == "writing_folder_whole":
        from tfperf.files import writing_folder_whole

        return writing_folder_whole
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
