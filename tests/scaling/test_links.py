"""Links: their words, and that fits find the constants and the break points that made the times."""

import itertools
import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfperf.errors import TfperfError
from tfperf.scaling.links import SIZES, Link, fit_link, sweep

TRUE = Link(15e-6, 3.1e9)


def times(link=TRUE, sizes=SIZES):
    return np.array([link.seconds(size) for size in sizes])


def noisy(link=TRUE, repeats=20, spread=0.05, seed=0):
    """Rounds of times, shape (repeats, sizes), each off by a factor of its own."""
    return times(link) * np.exp(np.random.default_rng(seed).normal(0, spread, (repeats, len(SIZES))))


def in_pieces(size):
    """A link that changes its protocol after 64 KiB, and runs out of cache after 1 MiB."""
    if size <= 2**16:
        return Link(5e-6, 2e9).seconds(size)
    return (Link(40e-6, 6e9) if size <= 2**20 else Link(90e-6, 1.5e9)).seconds(size)


def test_a_message_takes_its_start_and_its_bytes():
    assert Link(1e-3, 1e6).seconds(0) == 1e-3
    assert Link(1e-3, 1e6).seconds(500) == pytest.approx(1.5e-3)
    assert Link(1e-3, math.inf).seconds(10**9) == 1e-3


@pytest.mark.parametrize(
    ("latency", "bandwidth"), [(-1, 1), (math.inf, 1), (math.nan, 1), (1, 0), (1, -1), (1, math.nan)]
)
def test_what_is_no_link_is_refused(latency, bandwidth):
    with pytest.raises(ValueError, match=r"expected a latency of at least 0 s .* Received: Link\(latency="):
        Link(latency, bandwidth)


@pytest.mark.parametrize(
    ("text", "latency", "bandwidth"),
    [
        ("25Gbps,15us", 15e-6, 25e9 / 8),
        ("1Tbps,0s", 0.0, 125e9),
        ("100Mbps,1ms", 1e-3, 12.5e6),
        ("56Kbps,0.2s", 0.2, 7e3),
        ("3.1GB/s,800ns", 800e-9, 3.1e9),
        ("500MB/s, 1us", 1e-6, 500e6),
        ("1GiB/s,1us", 1e-6, 2**30),
        ("infGbps,1us", 1e-6, math.inf),
    ],
)
def test_words_of_the_command_line(text, latency, bandwidth):
    link = Link.parse(text)
    assert link.latency == pytest.approx(latency)
    assert link.bandwidth == pytest.approx(bandwidth)
    assert Link.parse(str(link)).bandwidth == pytest.approx(bandwidth)


@pytest.mark.parametrize("text", ["25Gbps,15us", "1Tbps,0ns", "2.5Mbps,1.25ms", "64Kbps,1s", "800Gbps,850ns"])
def test_words_come_back_as_they_were(text):
    assert str(Link.parse(text)) == text


@given(st.floats(1e-12, 1e3), st.floats(1e-3, 1e15))
def test_words_say_any_link_to_six_digits(latency, bandwidth):
    link = Link.parse(str(Link(latency, bandwidth)))
    assert link.latency == pytest.approx(latency, rel=1e-5)
    assert link.bandwidth == pytest.approx(bandwidth, rel=1e-5)


@pytest.mark.parametrize(
    "text",
    ["", "25Gbps", "15us,25Gbps", "25GBps,15us", "25gbps,15us", "25Gbps,15", "25,15us", "0Gbps,1us", "-1Gbps,1us",
     "1.2.3Gbps,1us", ".Gbps,1us", "25Gbps,15us,1", "nanGbps,1us", "25Gbps,infs"],
)  # fmt: skip
def test_other_words_are_one_line_that_names_the_units(text):
    with pytest.raises(TfperfError, match=r"expected a link as 25Gbps,15us, .*GiB/s .* ns\. Received: ") as told:
        Link.parse(text)
    assert repr(text) in str(told.value)
    assert "\n" not in str(told.value)


@settings(max_examples=30, deadline=None)
@given(st.floats(1e-7, 1e-2), st.floats(1e6, 1e11))
def test_a_fit_finds_the_constants(latency, bandwidth):
    fit = fit_link(SIZES, times(Link(latency, bandwidth)))
    assert fit.link.bandwidth == pytest.approx(bandwidth, rel=0.01) or latency > 100 * SIZES[-1] / bandwidth
    assert fit.link.latency == pytest.approx(latency, rel=0.01)
    assert fit.breaks == ()
    assert fit.seconds(12345) == fit.link.seconds(12345)


def test_slow_calls_fool_no_fit():
    rounds, generator = noisy(spread=0.005), np.random.default_rng(1)
    struck = generator.random(rounds.shape) < 0.2
    rounds[struck] *= generator.uniform(2, 50, struck.sum())
    fit = fit_link(SIZES, rounds)
    assert fit.link.latency == pytest.approx(TRUE.latency, rel=0.01)
    assert fit.link.bandwidth == pytest.approx(TRUE.bandwidth, rel=0.01)
    assert fit.breaks == ()


def test_the_order_of_the_sizes_means_nothing():
    order = np.random.default_rng(2).permutation(len(SIZES))
    fit = fit_link(np.array(SIZES)[order], noisy()[:, order])
    assert fit.pieces == fit_link(SIZES, noisy()).pieces


@pytest.mark.parametrize("spread", [0.0, 0.05])
def test_break_points_are_found_where_they_pay(spread):
    exact = np.array([in_pieces(size) for size in SIZES])
    noise = np.exp(np.random.default_rng(3).normal(0, spread, (20, len(SIZES))))
    fit = fit_link(SIZES, exact * noise)
    assert fit.breaks == (2**16, 2**20)
    for size, seconds in zip(SIZES, exact, strict=True):
        assert fit.seconds(size) == pytest.approx(seconds, rel=0.001 + spread)


def test_one_break_point_is_one():
    exact = [(Link(5e-6, 2e9) if size <= 2**20 else Link(500e-6, 8e9)).seconds(size) for size in SIZES]
    assert fit_link(SIZES, exact).breaks == (2**20,)


def test_noise_is_no_break_point():
    assert [fit_link(SIZES, noisy(spread=0.2, repeats=5, seed=seed)).breaks for seed in range(20)] == [()] * 20


def test_intervals_hold_the_truth_and_widen_with_the_noise():
    held = 0
    for seed in range(20):
        fit = fit_link(SIZES, noisy(seed=seed))
        assert fit.low.latency <= fit.link.latency <= fit.high.latency
        assert fit.low.bandwidth >= fit.link.bandwidth >= fit.high.bandwidth
        held += fit.low.latency <= TRUE.latency <= fit.high.latency
        held += fit.low.bandwidth >= TRUE.bandwidth >= fit.high.bandwidth
    assert held >= 34  # 38 of 40 are expected
    quiet, loud = (fit_link(SIZES, noisy(spread=spread)) for spread in (0.01, 0.2))
    assert loud.high.latency - loud.low.latency > 5 * (quiet.high.latency - quiet.low.latency)
    exact = fit_link(SIZES, times())
    assert exact.high.latency - exact.low.latency < 1e-9


def test_intervals_widen_where_no_line_goes_through_all_sizes():
    fit = fit_link(SIZES, [in_pieces(size) for size in SIZES])
    assert fit.high.latency > 1.5 * fit.low.latency
    assert fit.low.bandwidth > 1.5 * fit.high.bandwidth


def test_times_that_do_not_grow_are_a_link_whose_bytes_cost_nothing():
    fit = fit_link([1, 2, 4], [1e-3, 1e-3, 1e-3])
    assert fit.link.latency == pytest.approx(1e-3)
    assert fit.link.bandwidth > 1e9
    assert fit_link([1, 2, 4], [3e-3, 2e-3, 1e-3]).link.bandwidth == math.inf


@pytest.mark.parametrize(
    ("sizes", "seconds", "words"),
    [
        ([1, 2], [1, 2], "at least 3 different sizes"),
        ([1, 2, 2], [1, 2, 2], "at least 3 different sizes"),
        ([1, 2, 3], [1, 2], "seconds for each of them"),
        ([1, 2, 3], [[1, 2]], "seconds for each of them"),
        ([1, 2, -3], [1, 2, 3], "different sizes"),
        ([1, 2, 3], [1, 0, 3], "finite seconds above 0"),
        ([1, 2, 3], [1, math.nan, 3], "finite seconds above 0"),
    ],
)
def test_what_cannot_be_fitted_is_refused(sizes, seconds, words):
    with pytest.raises(ValueError, match=words):
        fit_link(sizes, seconds)


def test_a_sweep_takes_turns_and_times_the_calls_alone():
    calls, now = [], itertools.count()  # a clock that goes on by 1 at each reading: each call takes 1
    seconds = sweep(calls.append, (8, 16, 32), repeats=4, clock=lambda: float(next(now)))
    assert seconds.tolist() == [[1.0] * 3] * 4
    assert calls[:3] == [8, 16, 32]  # warm-up
    rounds = [calls[start : start + 3] for start in range(3, 15, 3)]
    assert [sorted(one) for one in rounds] == [[8, 16, 32]] * 4
    assert len({tuple(one) for one in rounds}) > 1
    again = []
    sweep(again.append, (8, 16, 32), repeats=4)
    assert again == calls  # in every process alike


def test_a_sweep_writes_each_time_below_its_size():
    now = [0.0]

    def send(size):
        now[0] += TRUE.seconds(size)

    fit = fit_link(SIZES, sweep(send, repeats=3, clock=lambda: now[0]))
    assert fit.link.latency == pytest.approx(TRUE.latency, rel=0.01)
    assert fit.link.bandwidth == pytest.approx(TRUE.bandwidth, rel=0.01)


def test_what_comes_before_a_message_is_not_in_its_time():
    now = [0.0]

    def wait(seconds):
        now[0] += seconds

    seconds = sweep(wait, (1, 2), repeats=2, before=lambda: wait(100), clock=lambda: now[0])
    assert seconds.tolist() == [[1.0, 2.0]] * 2
    assert now[0] == 1 + 2 + 2 * (1 + 2 + 2 * 100)


def test_it_loads_no_tensorflow():
    code = "import sys, tfperf.scaling.links; assert not {'tensorflow', 'keras'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
