"""What failures cost: how often to write a checkpoint, and how long work takes that is begun again from it."""

import math

import numpy as np
from numpy.typing import NDArray

__all__ = ["simulate_failures", "young_interval"]


def young_interval(checkpoint: float, mean_time_between_failures: float) -> float:
    """Return the seconds of work between two checkpoints that lose least.

    Args:
        checkpoint: seconds that writing one takes.
        mean_time_between_failures: seconds, of all workers together: that of one, divided by their number.

    Source: Young, A first order approximation to the optimum checkpoint interval, CACM 17 (1974).
    """
    return math.sqrt(2 * checkpoint * mean_time_between_failures)


def simulate_failures(
    work: float,
    interval: float,
    *,
    checkpoint: float,
    restart: float,
    mean_time_between_failures: float,
    runs: int = 100,
    seed: int = 0,
) -> NDArray[np.float64]:
    """Simulate work that is stopped by failures and begun again from its last checkpoint.

    Failures come at random moments, also while a checkpoint is written or the work restarts.

    Args:
        work: seconds that it takes without any failure or checkpoint.
        interval: seconds of work between two checkpoints.
        checkpoint: seconds that writing one takes.
        restart: seconds from a failure until work goes on.
        mean_time_between_failures: seconds, of all workers together.
        runs: how often the whole is simulated.
        seed: of the random moments.

    Returns:
        Seconds of each run, shape (runs,).
    """
    if min(work, interval, mean_time_between_failures) <= 0:
        raise ValueError(f"expected work, interval and time between failures above 0 s. Received: {work}, {interval}")
    draw = np.random.default_rng(seed)
    seconds = np.empty(runs)
    for run in range(runs):
        now, done = 0.0, 0.0
        failure = draw.exponential(mean_time_between_failures)
        while done < work:
            part = min(interval, work - done)
            ends = now + part + (checkpoint if done + part < work else 0.0)
            if ends <= failure:
                now, done = ends, done + part
                continue
            now = failure
            failure = now + draw.exponential(mean_time_between_failures)
            while failure < now + restart:  # it fails again before it has begun
                now, failure = failure, failure + draw.exponential(mean_time_between_failures)
            now += restart
        seconds[run] = now
    return seconds
