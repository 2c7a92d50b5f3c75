"""TensorFlow's own threads, which a process chooses once."""

import tensorflow as tf

from tfperf.errors import EngineError

__all__ = ["use_threads"]


def use_threads(threads: int | None) -> str:
    """Have TensorFlow use so many threads for an operation, and one operation at a time; give what shows it.

    Args:
        threads: None: as it is.

    Raises:
        EngineError: TensorFlow has started with another number.
    """
    config = tf.config.threading
    if threads is None:
        return f"TensorFlow's own choice (intra {config.get_intra_op_parallelism_threads() or 'all cores'})"
    try:
        config.set_intra_op_parallelism_threads(threads)
        config.set_inter_op_parallelism_threads(1)
    except RuntimeError as error:
        raise EngineError(
            f"expected TensorFlow with {threads} threads, in this process it has started with "
            f"{config.get_intra_op_parallelism_threads() or 'as many as there are cores'}; use a fresh process"
        ) from error
    return f"TensorFlow's pools: intra {config.get_intra_op_parallelism_threads()}, inter 1"
