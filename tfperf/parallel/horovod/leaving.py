"""How a rank leaves the others."""

import atexit
import threading

import horovod.tensorflow as hvd

__all__ = ["shutdown", "shutdown_at_exit"]

_leaving = threading.Lock()


def shutdown() -> None:
    """Leave the other ranks; what they wait in together with this one fails.

    One thread at a time: Horovod joins its own thread here, and of two that join the same one, one may wait for ever.
    """
    with _leaving:
        hvd.shutdown()


def shutdown_at_exit() -> None:
    """Leave when the process ends; call it after each `hvd.init`, whose own registered function then finds it done."""
    atexit.unregister(shutdown)
    atexit.register(shutdown)
