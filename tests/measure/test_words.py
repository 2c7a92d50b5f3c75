"""Durations, ratios and sizes in words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfperf.measure.statistics import Interval
from tfperf.measure.words import format_bytes, format_interval, format_ratio, format_seconds


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.03712, "37.12 ms"),
        (1.0, "1 s"),
        (123.4, "123.4 s"),
        (0.001, "1 ms"),
        (2.5e-6, "2.5 us"),
        (3.21e-8, "32.1 ns"),
        (0.0, "0 ns"),
    ],
)
def test_seconds(seconds: float, words: str) -> None:
    assert format_seconds(seconds) == words


@given(seconds=st.floats(min_value=1e-9, max_value=9999))
def test_seconds_can_be_read_back(seconds: float) -> None:
    number, unit = format_seconds(seconds).split()
    size = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}[unit]
    assert float(number) * size == pytest.approx(seconds, rel=5.1e-4)
    assert len(number.replace(".", "").lstrip("0").split("e")[0]) <= 4


def test_interval_is_in_the_unit_of_its_estimate() -> None:
    assert format_interval(Interval(0.0015, 0.0009, 0.002)) == "1.5 ms [0.9, 2]"


@pytest.mark.parametrize(
    ("ratio", "words"),
    [(1.0, "1.000x"), (1.23456, "1.235x"), (4.71, "4.71x"), (12.34, "12.3x"), (1234.0, "1234x")],
)
def test_ratio(ratio: float, words: str) -> None:
    assert format_ratio(Interval(ratio, ratio, ratio)) == f"{words} [{words[:-1]}, {words[:-1]}]"


@pytest.mark.parametrize("ratio", [0.004, 0.0004])
def test_a_small_ratio_is_not_shown_as_nothing(ratio: float) -> None:
    # 0.0004x is 2500 times slower; "0.00x" says nothing.
    shown = float(format_ratio(Interval(ratio, ratio, ratio)).partition("x")[0])
    assert shown == pytest.approx(ratio, rel=0.1)


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (67_318_579, "64.2 MiB"),
        (3 * 2**30, "3 GiB"),
        (2**43, "8192 GiB"),
    ],
)
def test_bytes(size: int, words: str) -> None:
    assert format_bytes(size) == words
