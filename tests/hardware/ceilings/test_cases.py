"""What is measured for the ceilings: types, sizes, and how many operations share a working set."""

import pytest

from tfperf.hardware.ceilings import Bandwidth, ProductRate
from tfperf.hardware.ceilings.cases import TF32, WEIGHT_SETS, cases
from tfperf.hardware.ceilings.figures import Order

ENOUGH = 2**30
"""Bytes, more than the largest working set."""


def figures(order, kind, largest=ENOUGH, **options):
    """Pairs of case and figure, as if each case did one unit of work per second."""
    found = [(case, case.figure(1.0)) for case in cases(order, largest, **options)]
    return [(case, figure) for case, figure in found if isinstance(figure, kind)]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 12])
def test_a_working_set_is_shared_out(count):
    found = figures(Order(threads=1, memory=(count,)), Bandwidth)
    for case, one in found:
        assert one.threads == count
        read_and_written = 2 if one.kind == "pointwise" else 1
        assert case.work == pytest.approx(one.working_set * read_and_written, rel=1e-2)
    sets = [one.working_set for _, one in found if one.kind == "weights"]
    for whole, shared in zip(WEIGHT_SETS, sets, strict=True):
        assert whole / 2 < shared <= whole
        assert (shared == whole) == (count not in (3, 12))  # what is no power of two leaves a rest


def test_each_number_of_threads_has_the_same_sets():
    found = [one for _, one in figures(Order(threads=1, memory=(1, 2)), Bandwidth)]
    one, two = ([(each.kind, each.working_set) for each in found if each.threads == count] for count in (1, 2))
    assert one == two


def test_a_set_that_is_too_large_for_the_memory_is_left_out():
    order = Order(threads=1, memory=(1,))
    largest = max(one.working_set for _, one in figures(order, Bandwidth))
    assert max(one.working_set for _, one in figures(order, Bandwidth, largest - 1)) < largest


def test_only_one_process_measures_the_memory_but_on_a_gpu():
    order = Order(threads=4)
    assert figures(order, Bandwidth) == []
    assert {one.threads for _, one in figures(order, Bandwidth, on_gpu=True)} == {4}


def test_a_gpu_has_larger_products_and_one_more_type():
    here, there = (figures(Order(threads=2), ProductRate, on_gpu=on_gpu) for on_gpu in (False, True))
    assert {one.dtype for _, one in there} - {one.dtype for _, one in here} == {TF32}
    assert max(case.work for case, _ in there) > max(case.work for case, _ in here)


def test_quick_is_fewer_of_the_same():
    whole, quick = (
        {(one.kind, one.working_set) for _, one in figures(Order(threads=1, memory=(1,), quick=quick), Bandwidth)}
        for quick in (False, True)
    )
    assert quick < whole
