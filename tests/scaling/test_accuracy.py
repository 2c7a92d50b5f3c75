"""Steps to an accuracy: both ends of the rule, and that its range is in order."""

import pytest

from tfperf.scaling import CRITICAL_BATCH, predict_step, seconds_to_accuracy, steps_to_accuracy


def test_a_small_batch_needs_as_many_examples_and_a_large_one_as_many_steps():
    assert steps_to_accuracy(1000, 100, 1000) == 200
    assert steps_to_accuracy(1e9, 100, 1000) == pytest.approx(100)
    assert steps_to_accuracy(1, 100, 1000) / steps_to_accuracy(2, 100, 1000) == pytest.approx(2, rel=1e-2)


def test_more_workers_save_less_time_than_they_add_throughput(workload, cluster):
    one, all_ = predict_step(workload, cluster.with_workers(1)), predict_step(workload, cluster)
    sooner = seconds_to_accuracy(one).likely / seconds_to_accuracy(all_).likely
    assert 1 < sooner < all_.throughput.likely / one.throughput.likely
    assert sooner == pytest.approx(
        one.likely.seconds
        * (1 + CRITICAL_BATCH.likely / 64)
        / (all_.likely.seconds * (1 + CRITICAL_BATCH.likely / 1024))
    )


def test_the_range_is_in_order(workload, cluster):
    times = seconds_to_accuracy(predict_step(workload, cluster), least_steps=1000)
    assert times.slow > times.likely > times.fast > 0
