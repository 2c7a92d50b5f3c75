"""TensorFlow without its log of a healthy start."""

import gc
import os
import sys
import tempfile

from tfperf.importing import no_collections
from tfperf.start_up_noise import START_UP_NOISE

__all__ = ["QUIET_LOG", "load_tensorflow"]

QUIET_LOG = {"TF_CPP_MIN_LOG_LEVEL": "2"}
"""That log is nobody's lesson; errors are. The user's own setting wins."""


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
