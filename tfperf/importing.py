"""Imports of large libraries: sooner, and without what TensorFlow writes on each healthy start.

`python -m tfperf.importing MODULE ...` runs a tool of TensorFlow's so.
"""

import contextlib
import gc
import os
import re
import runpy
import sys
import tempfile
from collections.abc import Iterator

__all__ = ["KERAS_CAN_DO_WITHOUT", "QUIET_LOG", "START_UP_NOISE", "absent", "load_tensorflow", "main", "no_collections"]

KERAS_CAN_DO_WITHOUT = ("sklearn", "matplotlib")
"""Libraries that Keras imports wherever they are, for its wrappers and its pictures: a third of `import tensorflow`."""

QUIET_LOG = {"TF_CPP_MIN_LOG_LEVEL": "2"}
"""TensorFlow's log of a healthy start is nobody's lesson; errors are. The user's own setting wins."""

START_UP_NOISE = re.compile(
    r"All log messages before absl::InitializeLog\(\) is called are written to STDERR"
    r"|\] oneDNN custom operations are on\."
    r"|\] Could not find cuda drivers on your machine, GPU will not be used"
    r"|\] failed call to cuInit: .*\(303\)"  # 303: there is no driver's library to load
)
"""Lines that TensorFlow 2.21 writes on each healthy start on a machine without a GPU; no variable silences them."""


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


def load_tensorflow() -> None:
    """Import TensorFlow into this process and find its devices; of what that writes, only what is news is passed on."""
    for name, value in QUIET_LOG.items():
        os.environ.setdefault(name, value)
    with tempfile.TemporaryFile() as log:
        sys.stderr.flush()
        standard_error = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            with no_collections():
                import tensorflow as tf

            gc.freeze()  # it stays; else each collection, and the end of the process, would go through all of it
            tf.config.list_physical_devices()
        finally:
            os.dup2(standard_error, 2)
            os.close(standard_error)
            log.seek(0)
            for line in log.read().decode(errors="replace").splitlines():
                if not START_UP_NOISE.search(line):
                    print(line, file=sys.stderr)


def main() -> None:
    """Run a module, with the arguments that follow its name."""
    del sys.argv[0]
    with no_collections(), absent(*KERAS_CAN_DO_WITHOUT):
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
