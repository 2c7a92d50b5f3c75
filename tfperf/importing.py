"""Imports of large libraries, sooner: `python -m tfperf.importing MODULE ...` runs a tool of TensorFlow's so."""

import contextlib
import gc
import runpy
import sys
from collections.abc import Iterator

__all__ = ["KERAS_CAN_DO_WITHOUT", "absent", "main", "no_collections"]

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


def main() -> None:
    """Run a module, with the arguments that follow its name."""
    del sys.argv[0]
    with no_collections(), absent(*KERAS_CAN_DO_WITHOUT):
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
