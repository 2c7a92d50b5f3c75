"""Horovod's own exchanges for a loop's Python, each watched so that a rank does not wait in it for ever."""

import horovod.tensorflow as hvd

from tfperf.parallel.horovod.stalls import watched

__all__ = ["allgather", "allgather_object", "allreduce", "broadcast", "broadcast_object", "join"]

allgather = watched(hvd.allgather)
allgather_object = watched(hvd.allgather_object)
allreduce = watched(hvd.allreduce)
broadcast = watched(hvd.broadcast)
broadcast_object = watched(hvd.broadcast_object)
join = watched(hvd.join)
