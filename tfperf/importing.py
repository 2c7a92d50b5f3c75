"""Imports of large libraries, sooner."""

import contextlib
import gc
from collections.abc import Iterator

__all__ = ["no_collections"]


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
