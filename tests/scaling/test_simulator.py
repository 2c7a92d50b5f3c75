"""The simulator: the formula's figure where nothing is random, and what only it can say."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfperf.scaling import (
    Cluster,
    Exchange,
    Layer,
    Link,
    Range,
    Workload,
    predict_step,
    simulate,
    simulate_failures,
    young_interval,
)


@pytest.mark.parametrize(("transport", "algorithm"), [*itertools.product(("nccl-tcp", "mpi-tcp"), ("ring", "tree"))])
def test_it_equals_the_formula(workload, cluster, transport, algorithm):
    for fusion, overlap, cycle in itertools.product((0, 4e6, 64e6, 1e12), (True, False), (0, 1e-3, 5e-3)):
        exchange = Exchange(algorithm, overlap=overlap, fusion=fusion, cycle=cycle)
        one = replace(cluster, transport=transport)
        predicted, simulated = predict_step(workload, one, exchange).likely, simulate(workload, one, exchange, steps=2)
        assert simulated.seconds == pytest.approx(np.full((1, 2), predicted.seconds), rel=1e-9)
        assert simulated.collectives == 2 * len(predicted.collectives)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(st.integers(1, 10**7), min_size=1, max_size=3), st.floats(0, 1)), min_size=1, max_size=8
    ),
    st.sampled_from(("nccl-rdma", "measured")),
    st.sampled_from((0, 10**6, 10**9)),
    st.sampled_from((0, 1e-3)),
)
def test_it_equals_the_formula_for_any_net(layers, transport, fusion, cycle):
    net = Workload("net", tuple(Layer(tuple(sizes), work) for sizes, work in layers), 8, 0.05)
    cluster = Cluster(8, Link(1e-5, 1e9), 2, Link(0, 1e10), transport, skew=Range.exactly(0.0))
    exchange = Exchange("ring", fusion=fusion, cycle=cycle)
    assert simulate(net, cluster, exchange, steps=1).mean == pytest.approx(
        predict_step(net, cluster, exchange).likely.seconds, rel=1e-9
    )


def test_late_workers_cost_on_average_what_the_formula_says(workload, cluster):
    late = replace(cluster, skew=Range.exactly(0.05))
    assert simulate(workload, late, steps=400).mean == pytest.approx(
        predict_step(workload, late).likely.seconds, rel=0.01
    )
    assert simulate(workload, late, steps=20, seed=1).seconds.std() > 0


def test_jobs_on_one_line_wait_for_each_other(workload, cluster):
    """Where the line is free most of the time they hardly do; where it is not, the line is all that counts."""
    exchange = Exchange("ring", fusion=0)
    alone = simulate(workload, cluster, exchange, steps=10)
    shared = simulate(workload, cluster, exchange, steps=10, jobs=4)
    line = 4 * predict_step(workload, cluster, exchange).likely.communication
    assert shared.seconds.shape == (4, 10)
    assert alone.mean < shared.mean
    assert shared.seconds[:, 3:].mean() == pytest.approx(line, rel=0.1)


def test_thousands_of_workers_are_one_event_a_collective(workload, cluster):
    many = replace(cluster, workers=8192, skew=Range.exactly(0.02))
    exchange = Exchange("ring", fusion=0)
    assert simulate(workload, many, exchange, steps=20).collectives == 20 * len(workload.gradients)


def test_one_worker_exchanges_nothing(workload, cluster):
    simulated = simulate(workload, cluster.with_workers(1), steps=3)
    assert simulated.collectives == 0
    assert simulated.seconds == pytest.approx(np.full((1, 3), 0.25))


def test_equal_seeds_give_equal_steps(workload, cluster):
    late = replace(cluster, skew=Range.exactly(0.05))
    first, again, other = (simulate(workload, late, steps=5, seed=seed).seconds for seed in (3, 3, 4))
    assert (first == again).all()
    assert (first != other).all()


def test_servers_with_whole_tensors_have_a_formula_alone(workload, cluster):
    with pytest.raises(ValueError, match="whole_tensors"):
        simulate(workload, cluster, Exchange("parameter_server", whole_tensors=True))


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
