"""The simulator: the formula's figure where nothing is random, and what only it can say."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfperf.scaling import Cluster, Exchange, Layer, Link, Range, Workload, predict_step, simulate


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
