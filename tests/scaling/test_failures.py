"""Failures: without any nothing is lost, and the simulation finds Young's interval to be about the best."""

import numpy as np
import pytest

from tfperf.scaling import simulate_failures, young_interval

WORK, CHECKPOINT, BETWEEN = 100_000.0, 60.0, 10_000.0


def test_youngs_formula():
    assert young_interval(60, 12_000) == 1200


def test_without_failures_only_checkpoints_cost():
    """Ten parts of work have nine checkpoints between them."""
    seconds = simulate_failures(100, 10, checkpoint=1, restart=5, mean_time_between_failures=1e12, runs=3)
    assert seconds == pytest.approx(np.full(3, 109))


def simulated(interval, between=BETWEEN, restart=100.0):
    return simulate_failures(
        WORK, interval, checkpoint=CHECKPOINT, restart=restart, mean_time_between_failures=between, runs=300
    ).mean()


def test_youngs_interval_beats_a_third_and_three_times_it():
    best = young_interval(CHECKPOINT, BETWEEN)
    assert simulated(best) < simulated(best / 3)
    assert simulated(best) < simulated(3 * best)


@pytest.mark.parametrize("restart", [100.0, 3000.0])
def test_the_mean_is_that_of_the_theory(restart):
    """Daly (2006): M exp(R / M) (exp((t + C) / M) - 1) for each part of work t."""
    interval = young_interval(CHECKPOINT, BETWEEN)
    parts = WORK / interval
    theory = parts * BETWEEN * np.exp(restart / BETWEEN) * (np.exp((interval + CHECKPOINT) / BETWEEN) - 1)
    assert simulated(interval, restart=restart) == pytest.approx(theory, rel=0.03)


def test_more_failures_and_slower_restarts_cost_more():
    assert simulated(1000, between=2000) > simulated(1000)
    assert simulated(1000, restart=2000) > simulated(1000)


def test_work_of_no_length_is_refused():
    with pytest.raises(ValueError, match="above 0 s"):
        simulate_failures(0, 1, checkpoint=1, restart=1, mean_time_between_failures=1)
