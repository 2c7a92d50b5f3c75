"""What the ceilings say of sizes that were measured, and of those in between and beyond."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfperf.errors import HardwareError
from tfperf.hardware.ceilings import (
    Bandwidth,
    CallCost,
    Ceilings,
    ProductRate,
    Refusal,
)
from tfperf.measure import Environment
from tfperf.measure.results import read_document, write_result

PRODUCTS = {(None, 512): 2e11, (4096, 1024): 2.2e11}
POINTWISE = {2**14: 3e11, 2**20: 1.5e11, 2**26: 4e10}


@pytest.fixture(scope="module")
def ceilings():
    return Ceilings(
        environment=Environment.here(),
        products=(
            ProductRate(dtype="float32", threads=2, size=512, flops_per_second=4e11),
            *(
                ProductRate(dtype="float32", threads=1, size=size, rows=rows, flops_per_second=rate)
                for (rows, size), rate in PRODUCTS.items()
            ),
        ),
        bandwidths=tuple(
            Bandwidth(threads=1, working_set=size, bytes_per_second=rate, kind="pointwise")
            for size, rate in POINTWISE.items()
        ),
        calls=(CallCost(name="graph op", seconds=2e-7),),
        disk_read_bytes_per_second=None,
        loopback_seconds=2e-5,
        loopback_bytes_per_second=None,
        refusals=(Refusal(name="float16 products", reason="no kernel"),),
    )


def test_what_was_measured_is_told_as_it_is(ceilings):
    for size, rate in POINTWISE.items():
        assert ceilings.bandwidth(size, 1) == pytest.approx(rate)
    assert ceilings.call("graph op") == 2e-7
    assert ceilings.threads == (1, 2)


def test_the_peak_is_that_of_the_fastest_product(ceilings):
    assert ceilings.peak("float32", 1) == 2.2e11
    assert ceilings.peak("float32", 2) == 4e11


def test_in_between_it_is_on_logarithmic_scales(ceilings):
    assert ceilings.bandwidth(2**17, 1) == pytest.approx(math.sqrt(3e11 * 1.5e11))


def test_beyond_what_was_measured_it_is_as_at_the_nearest(ceilings):
    assert ceilings.bandwidth(2**34, 1) == 4e10
    assert ceilings.bandwidth(1, 1) == 3e11


@given(small=st.integers(1, 2**31), large=st.integers(1, 2**31))
def test_the_bandwidth_falls_with_the_working_set_where_it_was_measured_to_fall(ceilings, small, large):
    small, large = sorted((small, large))
    assert ceilings.bandwidth(small, 1) >= ceilings.bandwidth(large, 1) * (1 - 1e-9)


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda one: one.peak("float16", 1), r"float16 with 1 thread \(no kernel\)"),
        (lambda one: one.peak("float32", 3), "float32 with 3 threads; threads measured: 1, 2"),
        (lambda one: one.peak("float64", 1), "no products were measured in float64"),
        (lambda one: one.bandwidth(2**20, 1, "weights"), "no bandwidths were measured in weights"),
        (lambda one: one.call("model call"), "expected a call of graph op. Received: model call"),
    ],
)
def test_what_was_not_measured_is_an_error_that_says_what_was(ceilings, ask, words):
    with pytest.raises(HardwareError, match=words) as told:
        ask(ceilings)
    assert "\n" not in str(told.value)


def test_a_working_set_of_no_bytes_is_refused(ceilings):
    with pytest.raises(ValueError, match="of 1 byte or more"):
        ceilings.bandwidth(0, 1)


def test_they_are_read_back_as_they_were_written(ceilings, tmp_path):
    write_result(tmp_path / "c.json", ceilings)
    assert read_document(tmp_path / "c.json", Ceilings) == ceilings
