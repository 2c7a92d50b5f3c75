"""The outlook: where workers stop paying, what limits them, and what would help, in order."""

from dataclasses import replace

import pytest

from tfperf.scaling import BatchTimes, Cluster, Exchange, Link, Range, Workload, outlook, predict_step

NONE_LATE = Range.exactly(0.0)
DOUBLES = (1, 2, 4, 8, 16, 32, 64)


def seen(workload, cluster, exchange=None, workers=DOUBLES):
    return outlook(workload, cluster, exchange or Exchange("ring"), workers)


def test_where_nothing_is_exchanged_all_workers_pay(workload):
    view = seen(workload, Cluster(1, Link(0, 1e15), skew=NONE_LATE))
    assert view.knee == 64
    assert set(view.bottlenecks) == {"compute"}
    assert [p.efficiency.likely for p in view.predictions] == pytest.approx([1] * 7)


def test_the_knee_is_the_last_number_of_which_half_is_gained(workload):
    """One server that gathers all: beyond it, each further worker is gained by less than half."""
    view = seen(workload, Cluster(1, Link(0, 2e9), skew=NONE_LATE), Exchange("gather"))
    knee = DOUBLES.index(view.knee)
    rates = [p.throughput.likely for p in view.predictions]
    marginal = [
        (rates[k] - rates[k - 1]) / (DOUBLES[k] - DOUBLES[k - 1]) / workload.examples_per_second for k in range(1, 7)
    ]
    assert 0 < knee < 6
    assert marginal[knee - 1] >= 0.5
    assert all(share < 0.5 for share in marginal[knee:])


def test_no_knee_where_the_second_worker_does_not_pay(workload):
    assert seen(workload, Cluster(1, Link(0, 1e7), skew=NONE_LATE)).knee == 1


@pytest.mark.parametrize(
    ("bottleneck", "cluster", "exchange"),
    [
        ("link", Cluster(16, Link(0, 1e8)), Exchange("ring")),
        ("latency", Cluster(16, Link(1e-2, 1e12)), Exchange("ring", fusion=0)),
        ("inside the node", Cluster(16, Link(0, 1e10), 4, Link(0, 1e8)), Exchange("ring")),
        ("servers", Cluster(16, Link(0, 1e9), apart=True), Exchange("parameter_server")),
        ("software", Cluster(16, Link(0, 1e11), transport="nccl-tcp"), Exchange("ring")),
        ("late workers", Cluster(16, Link(0, 1e12), skew=Range.exactly(0.2)), Exchange("ring")),
        ("compute", Cluster(16, Link(0, 1e12)), Exchange("ring")),
    ],
)
def test_what_limits(workload, bottleneck, cluster, exchange):
    view = seen(workload, cluster, exchange, (16,))
    if bottleneck == "servers":  # a faster line helps as much: both double what the servers' ports take
        assert view.bottlenecks[0] in ("servers", "link")
    else:
        assert view.bottlenecks == (bottleneck,)


def test_remedies_gain_what_the_model_says_and_are_in_order(workload, cluster):
    exchange = Exchange("gather", fusion=0)
    view = seen(workload, cluster, exchange, (16,))
    gains = [one.gain for one in view.remedies]
    assert gains == sorted(gains, reverse=True)
    assert all(gain > 1.01 for gain in gains)
    half = next(one for one in view.remedies if "float16" in one.words)
    before, after = (predict_step(workload, cluster, how) for how in (exchange, replace(exchange, compression=0.5)))
    assert half.gain == pytest.approx(after.throughput.likely / before.throughput.likely)
    assert any("another algorithm" in one.words for one in view.remedies)
    assert any("a batch of 256" in one.words for one in view.remedies)


def test_what_is_done_already_is_no_remedy(workload, cluster):
    view = seen(workload, cluster, Exchange("auto", compression=0.5), (16,))
    assert not any("float16" in one.words or "algorithm" in one.words for one in view.remedies)


def test_more_servers_are_a_remedy_for_one(workload):
    view = seen(workload, Cluster(16, Link(0, 1e9), transport="grpc"), Exchange("parameter_server"), (16,))
    assert any(one.words == "16 parameter servers" for one in view.remedies)


def test_one_worker_needs_no_remedy(workload, cluster):
    view = seen(workload, cluster, workers=(1,))
    assert (view.knee, view.remedies) == (1, ())


def test_a_batch_divided_gains_less_than_a_batch_multiplied():
    """What a step has beside its examples, and the exchange, do not shrink with the batch."""
    times = BatchTimes(0.05, 0.001)
    net = Workload.uniform("net", 10_000_000, 10, 64, times.seconds(64))
    view = seen(net, Cluster(1, Link(0, 1e10), skew=NONE_LATE))
    strong = dict(view.strong(times))
    assert strong[1].likely == 1
    assert strong[64].likely < times.seconds(64) / times.seconds(1)
    assert strong[16].slow <= strong[16].likely <= strong[16].fast
    assert max(strong) == 64


def test_a_batch_divided_is_the_smaller_batchs_step_where_the_exchange_is_free(workload):
    times = BatchTimes(0.05, 0.001)
    net = workload.at_batch(64, times.seconds(64))
    strong = dict(seen(net, Cluster(1, Link(0, 1e15), skew=NONE_LATE)).strong(times))
    assert strong[16].likely == pytest.approx(times.seconds(64) / times.seconds(4))


def test_there_is_no_worker_with_less_than_one_example(workload, cluster):
    view = seen(workload.at_batch(4, 0.1), cluster.with_workers(1), workers=(1, 4, 8))
    assert [workers for workers, _ in view.strong(BatchTimes(0, 0.025))] == [1, 4]


@pytest.mark.parametrize("workers", [(), (0, 1), (2, 1), (1, 1)])
def test_numbers_that_do_not_rise_are_refused(workload, cluster, workers):
    with pytest.raises(ValueError, match="rising numbers"):
        seen(workload, cluster, workers=workers)
