"""A program that each of two ranks runs: one sum over both of them.

    tfperf launch -np 2 python -m tfperf.parallel.horovod_build.two_ranks RESULT

Rank 0 writes to RESULT, as JSON, `size`, the least and the greatest element of the sum, and each rank's seconds.
"""

import json
import sys
import time
from pathlib import Path

__all__ = ["ELEMENTS", "main"]

ELEMENTS = 1_000_000
"""float32 values in the tensor: 4 MB, about the gradients of a small net."""


def main(result: Path) -> None:
    """Sum a tensor of rank + 1 over all ranks, twice: the first time they also get to know each other."""
    import horovod.tensorflow as hvd
    import tensorflow as tf

    hvd.init()
    mine = tf.fill([ELEMENTS], float(hvd.rank() + 1))  # (elements,)
    for _ in range(2):
        start = time.perf_counter()
        total = hvd.allreduce(mine, op=hvd.Sum, name="sum")
        seconds = time.perf_counter() - start
    everyone = hvd.allgather(tf.constant([seconds], tf.float64), name="seconds")  # (ranks,)
    if hvd.rank() == 0:
        least, greatest = float(tf.reduce_min(total)), float(tf.reduce_max(total))
        found = {"size": hvd.size(), "least": least, "greatest": greatest, "seconds": everyone.numpy().tolist()}
        result.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
