"""Imports of large libraries, sooner."""

import contextlib
import gc
import sys
from collections.abc import Iterator

__all__ = ["KERAS_CAN_DO_WITHOUT", "absent", "no_collections"]

KERAS_CAN_DO_WITHOUT = ("sklearn", "matplotlib")
"""Libraries that Keras imports wherever they are, for its wrappers and its pictures: a third of `import tensorflow`."""


@contextlib.contextmanager
def no_collections() -> Iterator[None]:
    """Switch Python's garbage collector off: what an import makes stays, and each collection goes through all of it.

    Of `import tensorflow` that was a sixth to a third of the time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def absent(*names: str) -> Iterator[None]:
    """Have libraries not be installed meanwhile, in this process; those that are loaded already stay."""
    hidden = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None: the import system takes it for absent
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
