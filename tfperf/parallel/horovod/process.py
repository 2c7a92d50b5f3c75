"""This process as one of Horovod's ranks: how it joins the others, leaves them, and what it may use of the machine."""

import atexit
import os
import threading
from collections.abc import Sequence

import horovod.tensorflow as hvd
import tensorflow as tf

from tfperf.errors import HorovodError
from tfperf.parallel.horovod.stalls import forget_exchanges, watch_for_stalls
from tfperf.parallel.launch.network import listen_where_ranks_talk

__all__ = ["init", "is_elastic", "shutdown", "shutdown_at_exit", "verbose"]

_leaving = threading.Lock()


def init(process_sets: Sequence[hvd.ProcessSet] | str | None = None) -> None:
    """Join the other ranks that `tfperf launch`, `horovodrun` or Spark started; alone, be the only rank.

    Sees to it that ranks which wait for each other in vain end, that nothing listens beyond this machine
    when all ranks are on it, and that each rank takes one GPU, with memory growth, where there are any.
    The user's own environment variables win.

    Args:
        process_sets: as in Horovod's own `init`.

    Raises:
        HorovodError: TensorFlow has used the GPUs already, so that this rank cannot take its own.
    """
    listen_where_ranks_talk()
    if tf.config.list_physical_devices("GPU"):
        os.environ.setdefault("HOROVOD_ENABLE_XLA_OPS", "1")  # there Keras compiles by default, exchange and all
    hvd.init(process_sets=process_sets)
    shutdown_at_exit()
    forget_exchanges()
    watch_for_stalls(shutdown)
    _take_gpu()


def is_elastic() -> bool:
    """Whether ranks may come and go, so that `elastic.KerasState` keeps them equal and not each optimizer."""
    return os.environ.get("HOROVOD_ELASTIC") == "1"


def verbose(level: int | str = "auto") -> int | str:
    """What to pass as `verbose=` to fit, evaluate and predict: `level` on rank 0, 0 on all others."""
    return level if hvd.rank() == 0 else 0


def _take_gpu() -> None:
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return
    try:
        for gpu in gpus:
            tf.config.experimental.set_memory_growth(gpu, True)
        tf.config.set_visible_devices(gpus[hvd.local_rank() % len(gpus)], "GPU")
    except RuntimeError as error:
        raise HorovodError(
            "expected hvd.init() before TensorFlow uses a GPU, it came after; call it first thing"
        ) from error


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
