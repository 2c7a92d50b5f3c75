"""Options that are quantities, or several values."""

import itertools

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from tfperf.cli.options import batch_sizes, byte_count, duration, share


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("1", (1,)),
        ("8,1,32,8", (1, 8, 32)),
        (" 2 , 4 ", (2, 4)),
        ("1:256", (1, 2, 4, 8, 16, 32, 64, 128, 256)),
        ("1:200", (1, 2, 4, 8, 16, 32, 64, 128, 200)),
        ("3:13", (3, 6, 12, 13)),
        ("5:5", (5,)),
        ("1:2", (1, 2)),
        ("100:150", (100, 150)),
    ],
)
def test_batch_sizes(text, sizes):
    assert batch_sizes("--batch", text) == sizes


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_a_range_is_its_ends_and_doubles_of_the_first(one, other):
    first, last = sorted((one, other))
    sizes = batch_sizes("--batch", f"{first}:{last}")
    assert (sizes[0], sizes[-1]) == (first, last)
    assert list(sizes) == sorted(set(sizes))
    for smaller, larger in itertools.pairwise(sizes):
        assert larger == 2 * smaller or (larger == last and larger < 2 * smaller)


@pytest.mark.parametrize(
    ("text", "seconds"), [("5ms", 5e-3), ("800us", 8e-4), ("1.5s", 1.5), (" 2 MS ", 2e-3), (".5s", 0.5), ("3.s", 3.0)]
)
def test_durations(text, seconds):
    assert duration("--latency-limit", text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "size"),
    [("2GiB", 2**31), ("500MB", 5 * 10**8), ("1", 1), ("1.5k", 1536), ("3 gb", 3 * 10**9), ("7B", 7), ("1M", 2**20)],
)
def test_sizes(text, size):
    assert byte_count("--memory-limit", text) == size


@pytest.mark.parametrize(
    ("text", "value"),
    [("0.5%", 0.005), ("0.005", 0.005), ("0", 0.0), ("100 %", 1.0), ("1", 1.0), ("0%", 0.0), ("1e-3", 1e-3)],
)
def test_shares(text, value):
    assert share("--accuracy-drop", text) == pytest.approx(value)


def test_a_share_may_be_over_1_where_that_makes_sense():
    assert share("--threshold", " 250 % ", most=10) == 2.5


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (batch_sizes, text)
        for text in ("", "0", "1:", ":8", "1:0", "8:1", "1:2:4", "1:2,4", "-1", "1.5", "a", "1,,2", "²")
    ]
    + [
        (duration, text)
        for text in ("", "5", "0s", "-1s", "5 min", "ms", "1e-3s", "nans", "infs", "1,5s", "٣s", "5ms5")
    ]
    + [(byte_count, text) for text in ("", "0", "0.5", "-1GiB", "1TiB", "GiB", "1e9", "2 G i B", "nan")]
    + [(share, text) for text in ("", "-1%", "1.01", "101%", "5ms", "%", "nan", "0.5 %%")],
)
def test_anything_else_is_refused_with_what_was_given(read, text):
    with pytest.raises(typer.BadParameter) as refused:
        read("--option", text)
    assert refused.value.message.startswith("expected --option ")
    assert refused.value.message.endswith(f"Received: {text}")
