"""A step: overlap by hand, bounds that hold for any net, and the terms one by one."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfperf.scaling import Cluster, Exchange, Layer, Link, Range, Workload, expected_largest, predict_step, timeline

NONE_LATE = Range.exactly(0.0)
EACH_ALONE = Exchange("ring", fusion=0, cycle=0)


@st.composite
def workloads(draw):
    layers = draw(st.lists(st.tuples(st.integers(1, 10**8), st.floats(0.01, 1)), min_size=1, max_size=12))
    return Workload(
        "net", tuple(Layer((size,), work) for size, work in layers), draw(st.integers(1, 256)), draw(st.floats(1e-3, 2))
    )


@st.composite
def clusters(draw):
    per_node = draw(st.sampled_from((1, 2, 4)))
    line = Link(draw(st.floats(0, 1e-3)), draw(st.floats(1e7, 1e10)))
    transport = draw(st.sampled_from(("nccl-tcp", "nccl-rdma", "mpi-tcp", "measured")))
    return Cluster(per_node * draw(st.integers(1, 20)), line, per_node, Link(0, 1e10), transport)


exchanges = st.builds(
    Exchange,
    st.sampled_from(("auto", "ring", "tree", "gather", "hierarchical", "halving_doubling")),
    fusion=st.sampled_from((0, 1e6, 1e9)),
    cycle=st.sampled_from((0, 1e-3, 5e-3)),
    compression=st.sampled_from((0.5, 1.0)),
)


def test_overlap_by_hand():
    """`start[l] = max(start[l+1] + t[l+1], ready[l])`: the second waits for the first, the third for its gradient."""
    collectives, _ = timeline([(3, 1.0), (1, 2.0), (1, 9.0)], float, EACH_ALONE, eager=False)
    assert [(one.begin, one.end) for one in collectives] == [(1, 4), (4, 5), (9, 10)]


def test_what_is_ready_is_fused_and_what_is_not_is_not_waited_for():
    exchange = Exchange(fusion=100, cycle=0)
    collectives, _ = timeline([(4, 1.0), (1, 2.0), (1, 3.0), (1, 9.0)], float, exchange, eager=True)
    assert [(one.begin, one.size) for one in collectives] == [(1, 4), (5, 2), (9, 1)]


def test_a_queue_in_order_fills_the_buffer_and_waits():
    exchange = Exchange(fusion=5, cycle=0)
    collectives, _ = timeline([(4, 1.0), (1, 2.0), (1, 3.0)], float, exchange, eager=False)
    assert [(one.begin, one.size) for one in collectives] == [(2, 5), (7, 1)]


def test_a_tensor_larger_than_the_buffer_goes_alone():
    collectives, _ = timeline([(1, 1.0), (9, 1.0), (1, 1.0)], float, Exchange(fusion=5), eager=False)
    assert [one.size for one in collectives] == [1, 9, 1]


def test_a_cycle_is_a_least_period_and_no_delay():
    """The first look is at once; the next not before a cycle; after a long exchange at once again."""
    exchange = Exchange(fusion=0, cycle=2.0)
    collectives, _ = timeline([(0.5, 1.0), (7, 1.2), (1, 1.2)], float, exchange, eager=True)
    assert [one.begin for one in collectives] == [1.0, 3.0, 10.0]


def test_computing_slows_down_beside_an_exchange_only():
    """A worker computes 10 s, for 4 of them at half speed: it ends 2 s later."""
    _, second_of = timeline([(4, 1.0)], float, EACH_ALONE, eager=False, contention=1.0)
    assert [second_of(done) for done in (1.0, 2.0, 3.0, 10.0)] == [1, 3, 5, 12]


def test_one_worker_is_alone(workload, cluster):
    p = predict_step(workload, cluster.with_workers(1))
    assert (p.slow, p.likely.seconds, p.fast) == (0.25, 0.25, 0.25)
    assert p.likely.communication == p.likely.exposed == 0
    assert p.efficiency == (1, 1, 1)


@given(workloads(), clusters(), exchanges)
def test_bounds_are_in_order(workload, cluster, exchange):
    p = predict_step(workload, cluster, exchange)
    assert p.slow >= p.likely.seconds >= p.fast > 0
    assert p.efficiency.slow <= p.efficiency.likely <= p.efficiency.fast <= 1 + 1e-9
    assert p.fast >= workload.seconds * (1 - 1e-9)


def test_the_slow_bound_overlaps_nothing(workload, cluster):
    """Whatever the exchange, it is computing and then all gradients."""
    overlapped, serial = (
        predict_step(workload, cluster, Exchange("ring", overlap=overlap)) for overlap in (True, False)
    )
    assert overlapped.slow == pytest.approx(serial.slow)
    layerwise = predict_step(workload, cluster, Exchange("ring", fusion=0))
    assert layerwise.slow > 0.25 + layerwise.likely.communication


def test_the_slow_bound_holds_where_fusing_all_at_the_end_is_faster(workload):
    """25 exchanges of gradients as they come, 50 ms each at least, against one of all."""
    cluster = Cluster(2, Link(25e-3, 1e12), skew=NONE_LATE)
    p = predict_step(workload, cluster, Exchange("ring", fusion=1e12, cycle=0))
    assert p.slow == p.likely.seconds > 0.25 + 0.05 + 0.01


@given(workloads(), clusters(), exchanges)
def test_overlap_on_the_host_is_never_slower_than_serial(workload, cluster, exchange):
    """On devices it can be: there an exchange slows computing down."""
    cluster = replace(cluster, transport="measured")
    each = replace(exchange, fusion=0, cycle=0)
    serial = predict_step(workload, cluster, replace(each, overlap=False)).likely.seconds
    assert predict_step(workload, cluster, each).likely.seconds <= serial * (1 + 1e-9)


@given(workloads(), clusters(), exchanges, st.floats(1, 100))
def test_more_bandwidth_is_never_slower_where_fusion_stays(workload, cluster, exchange, factor):
    faster = replace(cluster, line=Link(cluster.line.latency, cluster.line.bandwidth * factor))
    each = replace(exchange, fusion=0, overlap=False)
    assert predict_step(workload, faster, each).likely.seconds <= predict_step(
        workload, cluster, each
    ).likely.seconds * (1 + 1e-9)


@given(workloads(), clusters(), exchanges)
def test_all_gradients_are_exchanged_once(workload, cluster, exchange):
    p = predict_step(workload, cluster.with_workers(max(2, cluster.workers)), exchange)
    assert sum(one.size for one in p.likely.collectives) == pytest.approx(workload.size)
    ends = [0.0, *(one.end for one in p.likely.collectives)]
    assert all(one.begin >= end for one, end in zip(p.likely.collectives, ends, strict=False))


def test_late_workers_make_all_wait(workload, cluster):
    late = predict_step(workload, replace(cluster, skew=Range.exactly(0.1)))
    assert late.likely.compute == pytest.approx(0.25 * (1 + 0.1 * expected_largest(16)))


@pytest.mark.parametrize("workers", [2, 16, 512])
def test_the_expected_largest_is_that_of_many_draws(workers):
    draws = np.random.default_rng(0).standard_normal((4000, workers)).max(axis=1)
    assert expected_largest(workers) == pytest.approx(draws.mean(), abs=0.04)


def test_workers_that_share_cores_slow_each_other(workload):
    shared = Cluster(4, Link(0, 1e12), 4, slowdown=2.0, skew=NONE_LATE)
    assert predict_step(workload, shared).likely.compute == pytest.approx(0.5)
    assert predict_step(workload, shared.with_workers(2)).likely.compute == pytest.approx(0.25 * (1 + 1 / 3))


def test_half_the_bytes_take_half_the_time(workload, cluster):
    whole = predict_step(workload, cluster, Exchange("ring", overlap=False)).likely
    half = predict_step(workload, cluster, Exchange("ring", overlap=False, compression=0.5)).likely
    fixed = predict_step(workload, cluster, Exchange("ring", overlap=False, compression=1e-9)).likely.communication
    assert half.communication - fixed < 0.6 * (whole.communication - fixed)


def test_a_measured_link_is_taken_as_it_is(workload):
    link = Link(1e-4, 1e9)
    p = predict_step(workload, Cluster(2, link, skew=NONE_LATE), Exchange("ring", overlap=False))
    assert p.likely.communication == pytest.approx(2 * 1e-4 + 0.1)
    assert p.slow == pytest.approx(0.25 + 2e-4 + 0.1)


def test_one_tcp_flow_does_not_fill_a_fast_line():
    line = Link(0, 100e9 / 8)
    assert Cluster(8, line, transport="nccl-tcp").network().between.bandwidth < 0.2 * line.bandwidth
    assert Cluster(8, line, transport="nccl-rdma").network().between.bandwidth > 0.7 * line.bandwidth


def test_whole_tensors_are_pushed_and_pulled_after_the_step(workload, cluster):
    servers = replace(cluster, transport="grpc", servers=4)
    exchange = Exchange("parameter_server", whole_tensors=True)
    p = predict_step(workload, servers, exchange)
    assert p.likely.exposed == pytest.approx(p.likely.communication)
    one = predict_step(workload, replace(servers, servers=1), exchange)
    assert one.likely.communication > 2 * p.likely.communication


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda w, c: predict_step(w, c, Exchange("star")), "ring.*Received: 'star'"),
        (lambda w, c: replace(c, transport="pigeon"), "nccl-tcp.*Received: 'pigeon'"),
        (lambda w, c: replace(c, workers=0), "at least 1"),
        (lambda w, c: w.at_batch(0, 1.0), "batch of at least 1"),
    ],
)
def test_what_is_no_step_is_refused(workload, cluster, call, words):
    with pytest.raises(ValueError, match=words):
        call(workload, cluster)
