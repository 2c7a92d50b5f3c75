"""Horovod's own exchanges for a loop's Python, each watched so that a rank does not wait in it for ever."""

import horovod.tensorflow as hvd
import tensorflow as tf

from tfperf.parallel.horovod.stalls import watched

__all__ = ["allgather", "allgather_object", "allreduce", "broadcast", "broadcast_object", "join"]

allgather = watched(hvd.allgather)
allgather_object = watched(hvd.allgather_object)
allreduce = watched(hvd.allreduce)
broadcast = watched(hvd.broadcast)
broadcast_object = watched(hvd.broadcast_object)


@watched
def join() -> tf.Tensor:
    """Take part in the others' allreduces, with zeros, until all ranks are here; the last of them, an int32 scalar.

    Horovod 0.28.1 declares this as an operation without inputs or state, so TensorFlow keeps its first result, and
    a second call of the same one does not wait. Each call here is a function of its own.
    """
    return tf.function(lambda: hvd.join(), autograph=False).get_concrete_function()()
