"""What is bound by what, from costs made up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfperf.hardware.kernels.roofline import Bound, Cost, Spent

SECONDS = st.floats(0, 1e3)


@pytest.mark.parametrize(
    ("cost", "bound"),
    [
        (Cost(5.0, 4.0, 1.0, 0.1), Bound.COMPUTE),
        (Cost(5.0, 1.0, 4.0, 0.1), Bound.BANDWIDTH),
        (Cost(5.0, 1.0, 2.0, 3.0), Bound.OVERHEAD),
        (Cost(0.0, 0.0, 0.0, 0.0), Bound.OVERHEAD),
    ],
)
def test_the_largest_part_is_the_bound(cost, bound):
    assert cost.bound is bound


def test_what_kernels_spend_is_shared_out():
    compute, traffic = Cost(3.0, 2.0, 1.0, 0.5), Cost(2.0, 0.1, 2.0, 0.25)
    spent = Spent.of([(compute, 4.0), (traffic, 3.0)], between=1.0)
    assert spent == (3.5, 2.75, 1.75)
    assert spent.bound is Bound.COMPUTE
    assert spent.share(Bound.COMPUTE) == 3.5 / 8


def test_a_call_that_is_mostly_between_kernels_is_overhead():
    assert Spent.of([(Cost(3.0, 2.0, 1.0, 0.5), 4.0)], between=10.0).bound is Bound.OVERHEAD


def test_a_kernel_shorter_than_its_start_is_all_overhead():
    assert Spent.of([(Cost(3.0, 2.0, 1.0, 0.5), 0.2)]) == (0.0, 0.0, 0.2)


@given(st.lists(st.tuples(st.builds(Cost, SECONDS, SECONDS, SECONDS, SECONDS), SECONDS)), SECONDS)
def test_nothing_is_lost_and_nothing_is_made(kernels, between):
    spent = Spent.of(kernels, between)
    assert min(spent) >= 0
    assert sum(spent) == pytest.approx(sum(seconds for _, seconds in kernels) + between)


def test_no_time_has_no_shares():
    assert Spent.of([]).share(Bound.COMPUTE) == 0.0
    assert Bound.BANDWIDTH.adjective == "bandwidth-bound"
