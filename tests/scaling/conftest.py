"""Nets and clusters of the tests of this room."""

import pytest

from tfperf.scaling import Cluster, Link, Range, Workload


@pytest.fixture
def workload():
    """25 layers of 4 MB, 250 ms a step."""
    return Workload.uniform("net", 100_000_000, 25, 64, 0.25)


@pytest.fixture
def cluster():
    """16 workers on 4 nodes, none of them late."""
    line, inside = Link.parse("10Gbps,25us"), Link.parse("12GB/s,0s")
    return Cluster(16, line, 4, inside, "nccl-tcp", skew=Range.exactly(0.0))
