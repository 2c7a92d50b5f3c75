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
    ConvolutionRate,
    ProductRate,
    Refusal,
    thread_words,
)
from tfperf.measure import Environment
from tfperf.measure.results import read_document, write_result

SIZES = (32, 128, 512)
RATES = {(None, 32): 3e10, (None, 128): 2e11, (None, 512): 2.2e11, (1, 64): 1e10, (1, 1024): 4e10, (8, 64): 5e10}
RATES |= {(8, 1024): 1.5e11}
CONVOLUTIONS = {(1, 8, 16): 1e9, (1, 8, 4096): 5e10, (1, 128, 16): 8e10, (3, 8, 16): 4e9, (3, 128, 4096): 2e11}
POINTWISE = {2**14: 3e11, 2**20: 1.5e11, 2**26: 4e10}


@pytest.fixture(scope="module")
def ceilings():
    return Ceilings(
        environment=Environment.here(),
        products=(
            ProductRate(dtype="float32", threads=2, size=128, flops_per_second=4e11),
            *(
                ProductRate(dtype="float32", threads=1, size=size, rows=rows, flops_per_second=rate)
                for (rows, size), rate in RATES.items()
            ),
        ),
        convolutions=tuple(
            ConvolutionRate(
                dtype="float32", threads=1, kernel=kernel, channels=channels, positions=positions, flops_per_second=rate
            )
            for (kernel, channels, positions), rate in CONVOLUTIONS.items()
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
    for (rows, size), rate in RATES.items():
        assert ceilings.product_rate(rows or size, size, size, "float32", 1) == pytest.approx(rate)
    for (kernel, channels, positions), rate in CONVOLUTIONS.items():
        assert ceilings.convolution_rate(kernel, channels, positions, "float32", 1) == pytest.approx(rate)
    for size, rate in POINTWISE.items():
        assert ceilings.bandwidth(size, 1) == pytest.approx(rate)
    assert ceilings.call("graph op") == 2e-7
    assert ceilings.threads == (1, 2)
    assert ceilings.peak("float32", 1) == 2.2e11
    assert ceilings.peak("float32", 2) == 4e11


def test_in_between_it_is_on_logarithmic_scales(ceilings):
    assert ceilings.product_rate(256, 256, 256, "float32", 1) == pytest.approx(math.sqrt(2e11 * 2.2e11))
    assert ceilings.bandwidth(2**17, 1) == pytest.approx(math.sqrt(3e11 * 1.5e11))
    assert ceilings.product_rate(1, 256, 256, "float32", 1) == pytest.approx(2e10)
    eight = math.sqrt(5e10 * 1.5e11)
    assert ceilings.product_rate(8, 256, 256, "float32", 1) == pytest.approx(eight)
    assert ceilings.product_rate(2, 256, 256, "float32", 1) == pytest.approx(2e10 ** (2 / 3) * eight ** (1 / 3))
    assert ceilings.convolution_rate(1, 8, 256, "float32", 1) == pytest.approx(math.sqrt(1e9 * 5e10))
    assert ceilings.convolution_rate(1, 32, 16, "float32", 1) == pytest.approx(math.sqrt(1e9 * 8e10))


def test_beyond_the_largest_it_is_as_there_and_below_the_smallest_the_time_stays(ceilings):
    assert ceilings.product_rate(4096, 4096, 4096, "float32", 1) == pytest.approx(2.2e11)
    assert ceilings.bandwidth(2**34, 1) == pytest.approx(4e10)
    assert ceilings.bandwidth(1, 1) == pytest.approx(3e11)
    assert ceilings.convolution_rate(7, 512, 2**20, "float32", 1) == pytest.approx(2e11)
    alone = ceilings.model_copy(update={"products": tuple(one for one in ceilings.products if one.rows is None)})
    seconds = {n: 2 * n**3 / alone.product_rate(n, n, n, "float32", 1) for n in (4, 8, 16, 32)}
    assert list(seconds.values()) == pytest.approx([2 * 32**3 / 3e10] * 4)
    tiny = 2 * 4 * 8 * 8 / ceilings.convolution_rate(1, 8, 4, "float32", 1)
    assert tiny == pytest.approx(2 * 16 * 8 * 8 / 1e9)


sides = st.integers(1, 5000)


@given(m=sides, n=sides, k=sides)
def test_a_rate_is_never_above_the_best_and_no_matter_in_which_order_the_sizes_are(ceilings, m, n, k):
    rate = ceilings.product_rate(m, n, k, "float32", 1)
    assert 0 < rate <= ceilings.peak("float32", 1) * (1 + 1e-9)
    assert ceilings.product_rate(k, m, n, "float32", 1) == pytest.approx(rate)


@given(kernel=st.integers(1, 11), channels=sides, positions=st.integers(1, 10**7))
def test_a_convolution_is_never_faster_than_the_best(ceilings, kernel, channels, positions):
    assert 0 < ceilings.convolution_rate(kernel, channels, positions, "float32", 1) <= 2e11 * (1 + 1e-9)


@given(small=st.integers(1, 2**31), large=st.integers(1, 2**31))
def test_the_bandwidth_falls_with_the_working_set_where_it_was_measured_to_fall(ceilings, small, large):
    small, large = sorted((small, large))
    assert ceilings.bandwidth(small, 1) >= ceilings.bandwidth(large, 1) * (1 - 1e-9)


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda one: one.peak("float16", 1), r"float16 with 1 thread \(no kernel\)"),
        (lambda one: one.peak("float32", 3), "float32 with 3 threads; threads measured: 1, 2"),
        (lambda one: one.product_rate(1, 1, 1, "float64", 1), "no products were measured in float64"),
        (lambda one: one.convolution_rate(3, 8, 8, "float32", 2), "no convolutions were measured in float32"),
        (lambda one: one.bandwidth(2**20, 1, "weights"), "no bandwidths were measured in weights"),
        (lambda one: one.call("model call"), "expected a call of graph op. Received: model call"),
    ],
)
def test_what_was_not_measured_is_an_error_that_says_what_was(ceilings, ask, words):
    with pytest.raises(HardwareError, match=words) as told:
        ask(ceilings)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    "ask",
    [
        lambda one: one.product_rate(0, 1, 1, "float32", 1),
        lambda one: one.convolution_rate(3, 8, -1, "float32", 1),
        lambda one: one.bandwidth(0, 1),
    ],
)
def test_a_size_under_one_is_refused(ceilings, ask):
    with pytest.raises(ValueError, match="of 1 or more"):
        ask(ceilings)


def test_they_are_read_back_as_they_were_written(ceilings, tmp_path):
    write_result(tmp_path / "c.json", ceilings)
    assert read_document(tmp_path / "c.json", Ceilings) == ceilings


def test_threads_in_words():
    assert [thread_words(count) for count in (1, 2)] == ["1 thread", "2 threads"]
