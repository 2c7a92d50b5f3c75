"""Collectives: bytes and seconds against counting by hand, and what must hold for any size and network."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfperf.scaling import ALGORITHMS, Link, Network, allreduce_seconds, best_algorithm, bytes_sent, crossing_size
from tfperf.scaling.algorithms import server_loads, whole_tensor_servers

MB = 1_000_000
LINK = Link(10e-6, 1e9)
names = st.sampled_from(sorted(ALGORITHMS))
sizes = st.floats(1, 1e9)


@st.composite
def networks(draw):
    per_node = draw(st.sampled_from((1, 2, 4, 8)))
    return Network(
        per_node * draw(st.integers(1, 40)),
        Link(draw(st.floats(0, 1e-3)), draw(st.floats(1e6, 1e11))),
        per_node,
        Link(draw(st.floats(0, 1e-4)), draw(st.floats(1e6, 1e12))),
        reduce=draw(st.sampled_from((1e9, math.inf))),
        servers=draw(st.integers(1, 8)),
        apart=draw(st.booleans()),
    )


@pytest.mark.parametrize(
    ("algorithm", "workers", "sent"),
    [
        ("ring", 2, 1), ("ring", 4, 1.5), ("ring", 10, 1.8),
        ("gather", 5, 4), ("tree", 9, 2), ("halving_doubling", 8, 1.75),
    ],
)  # fmt: skip
def test_bytes_by_hand(algorithm, workers, sent):
    assert bytes_sent(algorithm, MB, workers) == pytest.approx(sent * MB)


def test_servers_share_what_all_workers_send():
    assert bytes_sent("parameter_server", MB, 8, servers=1) == 8 * MB
    assert bytes_sent("parameter_server", MB, 8, servers=4) == 2 * MB
    assert bytes_sent("parameter_server", MB, 8, servers=16) == MB  # a worker sends its own at least


def test_a_ring_by_hand():
    """6 starts, and 1.5 MB through each link."""
    assert allreduce_seconds("ring", MB, Network(4, LINK)) == pytest.approx(6 * 10e-6 + 1.5e-3)


def test_a_ring_through_nodes_by_hand():
    """8 workers on 2 nodes take 14 steps, 2 of them between nodes; the slower link sets the pace."""
    network = Network(8, LINK, 4, Link(1e-6, 1e10))
    assert allreduce_seconds("ring", MB, network) == pytest.approx(12 * 1e-6 + 2 * 10e-6 + 1.75e-3)


def test_gathering_by_hand():
    """Three send to one, and that one to three."""
    assert allreduce_seconds("gather", MB, Network(4, LINK)) == pytest.approx(6 * (10e-6 + 1e-3))


def test_halving_and_doubling_by_hand():
    """Half, a quarter, and back."""
    assert allreduce_seconds("halving_doubling", MB, Network(4, LINK)) == pytest.approx(4 * 10e-6 + 1.5e-3)


def test_halving_crosses_nodes_first_by_hand():
    """Both workers of a node send half a megabyte over its line, twice; then a quarter inside, twice."""
    network = Network(4, LINK, 2, Link(0, 1e10))
    assert allreduce_seconds("halving_doubling", MB, network) == pytest.approx(2 * (10e-6 + 1e-3) + 2 * 25e-6)


def test_a_tree_by_hand():
    assert allreduce_seconds("tree", MB, Network(8, LINK)) == pytest.approx(6 * 10e-6 + 2e-3)


def test_a_hierarchy_by_hand():
    """Inside a node of 2: half a megabyte twice; between 2 nodes: half of all of it, twice."""
    network = Network(4, LINK, 2, Link(0, 1e10))
    assert allreduce_seconds("hierarchical", MB, network) == pytest.approx(1e-4 + 2 * 10e-6 + 1e-3)


@pytest.mark.parametrize(
    ("servers", "apart", "megabytes"), [(1, True, 8), (4, True, 2), (16, True, 1), (8, False, 1.75), (1, False, 7)]
)
def test_parameter_servers_by_hand(servers, apart, megabytes):
    """Apart: max(M / B, n M / (k B)); on the workers' nodes 2 (n-1) M / (n B)."""
    network = Network(8, LINK, servers=servers, apart=apart)
    assert allreduce_seconds("parameter_server", MB, network) == pytest.approx(20e-6 + megabytes * 1e-3)


def test_whole_tensors_let_the_largest_decide():
    """The server that holds the large one moves 7 MB for each of 4 workers, push and pull; split evenly it were 5."""
    sizes, network = [7 * MB, MB, MB, MB], Network(4, LINK, servers=2)
    assert server_loads(sizes, 2, split=False) == [7 * MB, 3 * MB]
    assert server_loads(sizes, 2, split=True) == [5 * MB, 5 * MB]
    assert whole_tensor_servers(sizes, network) == pytest.approx(2 * (10e-6 + 28e-3))


def test_one_flow_does_not_fill_a_port_but_many_do():
    narrow = Network(4, Link(0, 1e9), servers=1, port=4e9)
    assert whole_tensor_servers([8 * MB], narrow) == pytest.approx(2 * 32e-3)
    assert whole_tensor_servers([MB] * 8, narrow) == pytest.approx(2 * 8e-3)


def test_a_node_that_adds_up_first_sends_once():
    network = Network(8, LINK, 4, Link(0, 1e10), servers=2)
    apart = whole_tensor_servers([MB] * 4, network)
    summed = whole_tensor_servers([MB] * 4, network, sum_in_node=True)
    assert summed == pytest.approx(2 * 4 * 4e-4 + 2 * (10e-6 + 4e-3))
    assert summed < apart


def test_servers_on_the_only_node_move_nothing_between_nodes():
    network = Network(8, LINK, 8, Link(0, 1e10), apart=False)
    assert whole_tensor_servers([MB], network, sum_in_node=True) == pytest.approx(2 * 8 * 1e-4)


@given(names, sizes, networks())
def test_one_worker_exchanges_nothing(algorithm, size, network):
    assert allreduce_seconds(algorithm, size, network.with_workers(1)) == 0
    assert bytes_sent(algorithm, size, 1) == 0


@given(names, sizes, networks(), st.floats(1, 100))
def test_more_bandwidth_is_never_slower(algorithm, size, network, factor):
    faster = replace(
        network,
        between=Link(network.between.latency, network.between.bandwidth * factor),
        inside=Link(network.inside.latency, network.inside.bandwidth * factor),
    )
    assert allreduce_seconds(algorithm, size, faster) <= allreduce_seconds(algorithm, size, network) * (1 + 1e-9)


@given(names, sizes, networks(), st.floats(1, 100))
def test_more_bytes_are_never_faster(algorithm, size, network, factor):
    assert allreduce_seconds(algorithm, size, network) <= allreduce_seconds(algorithm, size * factor, network) * (
        1 + 1e-9
    )


@given(sizes, st.integers(2, 500))
def test_a_rings_bytes(size, workers):
    assert bytes_sent("ring", size, workers) == pytest.approx(2 * (workers - 1) / workers * size)
    assert bytes_sent("ring", size, workers) < 2 * size


@given(sizes, networks(), st.integers(1, 20))
def test_more_servers_are_never_slower_apart(size, network, more):
    one = replace(network, apart=True)
    several = replace(one, servers=one.servers + more)
    assert allreduce_seconds("parameter_server", size, several) <= allreduce_seconds("parameter_server", size, one) * (
        1 + 1e-9
    )


def test_small_messages_take_a_tree_and_large_ones_a_ring():
    """The crossing is where 2 (n-1) starts cost what the tree's further bytes cost."""
    network = Network(16, LINK)
    crossing = crossing_size("tree", "ring", network)
    starts, share = (30 - 8) * 10e-6, 2 - 2 * 15 / 16
    assert crossing == pytest.approx(starts / share * 1e9, rel=0.01)
    assert best_algorithm(crossing / 2, network, ("ring", "tree")) == "tree"
    assert best_algorithm(crossing * 2, network, ("ring", "tree")) == "ring"


def test_no_crossing_where_one_always_wins():
    assert crossing_size("gather", "ring", Network(2, Link(0, 1e9), reduce=1e9)) is None


@pytest.mark.parametrize(
    "call", [lambda: allreduce_seconds("star", 1, Network(2, LINK)), lambda: bytes_sent("star", 1, 2)]
)
def test_an_unknown_algorithm_names_the_known(call):
    with pytest.raises(ValueError, match=r"ring, tree.*Received: 'star'"):
        call()


def test_no_workers_are_no_network():
    with pytest.raises(ValueError, match="at least 1"):
        Network(0, LINK)
