"""Horovod for Keras 3 on TensorFlow: `import tfperf.parallel.horovod as hvd`.

The names are those of `horovod.keras`, so that a script changes its import and keeps its lines::

    hvd.init()
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.Adam(1e-3 * hvd.size())), loss=...)
    model.fit(hvd.shard(dataset), callbacks=hvd.callbacks.default(), verbose=hvd.verbose(1))

Horovod's own Keras module does not work with Keras 3 and can train without exchanging gradients, silently.
How the two differ: docs/horovod_keras3.md.

Importing this imports neither TensorFlow nor Horovod; the first name used does, and raises `HorovodError` where
Horovod is not installed.
"""

import importlib
from typing import TYPE_CHECKING

from tfperf.errors import HorovodError

if TYPE_CHECKING:
    from horovod.tensorflow import (
        Adasum,
        Average,
        Compression,
        DistributedGradientTape,
        ProcessSet,
        Sum,
        add_process_set,
        cross_rank,
        cross_size,
        global_process_set,
        is_initialized,
        local_rank,
        local_size,
        rank,
        size,
    )

    from tfperf.parallel.horovod import callbacks, elastic
    from tfperf.parallel.horovod.batches import equal_batches, shard
    from tfperf.parallel.horovod.collectives import (
        allgather,
        allgather_object,
        allreduce,
        broadcast,
        broadcast_object,
        broadcast_variables,
        join,
    )
    from tfperf.parallel.horovod.coordination import check_equal, lead, rank_0_first, weights_digest
    from tfperf.parallel.horovod.optimizer import DistributedOptimizer, PartialDistributedOptimizer, load_model
    from tfperf.parallel.horovod.process import init, shutdown, verbose

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "broadcast",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "check_equal",
    "cross_rank",
    "cross_size",
    "elastic",
    "equal_batches",
    "global_process_set",
    "init",
    "is_initialized",
    "join",
    "lead",
    "load_model",
    "local_rank",
    "local_size",
    "rank",
    "rank_0_first",
    "shard",
    "shutdown",
    "size",
    "verbose",
    "weights_digest",
]

_HOMES = {
    "DistributedOptimizer": "optimizer",
    "PartialDistributedOptimizer": "optimizer",
    "allgather": "collectives",
    "allgather_object": "collectives",
    "allreduce": "collectives",
    "broadcast": "collectives",
    "broadcast_object": "collectives",
    "broadcast_variables": "collectives",
    "check_equal": "coordination",
    "equal_batches": "batches",
    "init": "process",
    "join": "collectives",
    "lead": "coordination",
    "load_model": "optimizer",
    "rank_0_first": "coordination",
    "shard": "batches",
    "shutdown": "process",
    "verbose": "process",
    "weights_digest": "coordination",
}
"""Public name -> the module here that it is loaded from; the others are Horovod's own."""

_MODULES = ("callbacks", "elastic")


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module '{__name__}' has no attribute {name!r}")
    try:
        horovod = importlib.import_module("horovod.tensorflow")
    except ImportError as error:
        raise HorovodError(
            f"expected Horovod with TensorFlow, importing it said: {error}; run `tfperf horovod install`"
        ) from error
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    home = importlib.import_module(f"{__name__}.{_HOMES[name]}") if name in _HOMES else horovod
    value = getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
