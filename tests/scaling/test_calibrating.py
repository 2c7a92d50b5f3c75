"""What is measured on this machine: links between processes and steps by batch."""

import pytest

from tfperf.errors import TfperfError
from tfperf.scaling import Link, Network, allreduce_seconds, measure_batch_times, measure_link, ring_link


@pytest.mark.parametrize("ranks", [2, 4, 9])
def test_a_hop_makes_the_ring_that_it_is_taken_from(ranks):
    whole = Link(3e-4, 2e9)
    network = Network(ranks, ring_link(whole, ranks))
    for size in (1e3, 1e8):
        assert allreduce_seconds("ring", size, network) == pytest.approx(whole.seconds(size))


def test_a_link_between_processes_is_measured():
    fit = measure_link(sizes=(1024, 65536, 2**20), repeats=3)
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
