"""What is measured on this machine: links between processes and steps by batch."""

import numpy as np
import pytest

from tfperf.errors import TfperfError
from tfperf.nets import get_net
from tfperf.parallel import Ring
from tfperf.scaling import (
    Link,
    Network,
    allreduce_seconds,
    mean_gradient,
    measure_batch_times,
    measure_link,
    measure_step,
    ring_link,
)


@pytest.mark.parametrize("ranks", [2, 4, 9])
def test_a_hop_makes_the_ring_that_it_is_taken_from(ranks):
    whole = Link(3e-4, 2e9)
    network = Network(ranks, ring_link(whole, ranks))
    for size in (1e3, 1e8):
        assert allreduce_seconds("ring", size, network) == pytest.approx(whole.seconds(size))


@pytest.mark.parametrize("rings", [1, 3])
def test_a_link_between_processes_is_measured(rings):
    fit = measure_link(sizes=(1024, 65536, 2**20), repeats=3, rings=rings)
    assert 1e-7 < fit.link.latency < 0.1
    assert 1e7 < fit.link.bandwidth < 1e12


@pytest.mark.timeout(200)
def test_steps_are_measured_by_batch():
    times = measure_batch_times("mlp", (1, 1024), seconds=0.2)
    assert [batch for batch, _ in times.measured] == [1, 1024]
    assert 0 < times.seconds(1) < times.seconds(1024)


@pytest.mark.timeout(200)
def test_a_model_that_fails_is_named():
    with pytest.raises(TfperfError, match="nonsense"):
        measure_batch_times("nonsense", (1,))


@pytest.mark.timeout(200)
def test_workers_compute_what_one_computes_and_wait_for_a_slow_link():
    """The gradients of the net are 0.66 MB: at 4 MB/s they take 0.1 s, even if both ends hold 128 KB each back."""
    with Ring(1, deadline=120) as one, Ring(2, 4_000_000, deadline=120) as two:
        whole, mean = mean_gradient(one, "mlp", 8, seed=3), mean_gradient(two, "mlp", 4, seed=3)
        times = measure_step(two, "mlp", 4, repeats=3)
    assert mean.shape == (get_net("mlp").count_params(),)
    np.testing.assert_allclose(mean, whole, atol=1e-5 * np.abs(whole).max())
    assert np.abs(whole).max() > 1e-3
    assert min(times.exchange, times.in_turns, times.at_once) > 0.05
    assert min(times) > 0
