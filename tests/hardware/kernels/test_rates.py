"""What is told of kernels from a few that are measured."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfperf.hardware.kernels.kinds import Kind, Spot
from tfperf.hardware.kernels.rates import MOST_WORK, KernelRates

RELU = Kind("pointwise", "Relu", "float32", ("1",))
PRODUCT = Kind("matrix", "MatMul", "float32")


def proportional(_, sizes):
    """Seconds as a product's work: rows, and the square of the side."""
    return 1e-9 * sizes[0] * (sizes[1] ** 2 if len(sizes) > 1 else 1)


@pytest.fixture
def rates(tmp_path):
    return KernelRates(2, tmp_path, measure=proportional)


def test_between_what_is_measured_powers_stay_powers(rates):
    for rows, side in ((1, 16), (3, 100), (64, 362.04), (4096, 128)):
        assert rates.seconds(Spot(PRODUCT, (rows, side))) == pytest.approx(1e-9 * rows * side**2)


def test_only_what_lies_around_is_measured(rates):
    rates.seconds(Spot(PRODUCT, (64, 200)))
    assert sorted(rates.known) == ["matrix MatMul float32 64x128", "matrix MatMul float32 64x256"]
    rates.seconds(Spot(PRODUCT, (64, 256)))
    assert len(rates.known) == 2


def test_beyond_the_largest_work_the_time_grows_with_it(rates):
    measured = []
    rates._measure = lambda kind, sizes: measured.append(sizes) or proportional(kind, sizes)
    assert rates.seconds(Spot(PRODUCT, (2**22, 1024))) == pytest.approx(1e-9 * 2**22 * 1024**2)
    assert all(2 * rows * side**2 <= MOST_WORK for rows, side in measured)


def test_below_the_smallest_it_takes_as_long(tmp_path):
    rates = KernelRates(1, tmp_path, measure=lambda _, sizes: 1e-6 if sizes == (16,) else 1.0)
    assert rates.seconds(Spot(RELU, (1,))) == pytest.approx(1e-6)
    assert rates.start(RELU) == 1e-6


@given(st.floats(1, 1e8), st.floats(1, 1e4))
def test_any_size_has_a_time_between_its_neighbours(tmp_path_factory, rows, side):
    rates = KernelRates(1, tmp_path_factory.mktemp("kept"), measure=proportional)
    found = rates.seconds(Spot(PRODUCT, (rows, side)))
    assert found == pytest.approx(1e-9 * rows * max(side, 16) ** 2, rel=1e-6)


def test_what_was_measured_is_kept_and_not_measured_again(rates, tmp_path):
    rates.seconds(Spot(RELU, (64,)))
    rates.keep()
    (file,) = tmp_path.glob("kernels-2-*.json")
    assert json.loads(file.read_text())["seconds"] == {"pointwise Relu float32 1 64": 6.4e-8}

    def refuse(*_):
        raise AssertionError("measured again")

    again = KernelRates(2, tmp_path, measure=refuse)
    assert again.seconds(Spot(RELU, (64,))) == pytest.approx(6.4e-8)
    assert KernelRates(1, tmp_path, measure=proportional).known == {}  # other threads, other times
    assert KernelRates(2, tmp_path, measure=proportional, fresh=True).known == {}


def test_it_tells_what_it_measures(tmp_path):
    told = []
    KernelRates(1, tmp_path, measure=proportional, tell=told.append).start(PRODUCT)
    assert told == ["measuring kernels: matrix MatMul float32 1x16"]
