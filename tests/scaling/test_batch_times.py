"""Steps by batch: the fit finds the constants that made the times."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfperf.scaling import BatchTimes


@given(st.floats(0, 1), st.floats(1e-6, 1))
def test_it_finds_what_made_the_times(fixed, each):
    times = BatchTimes.fit({batch: fixed + each * batch for batch in (1, 16, 64)})
    assert times.seconds(256) == pytest.approx(fixed + 256 * each, rel=1e-6)


def test_one_time_alone_grows_with_the_batch():
    assert BatchTimes.fit({32: 0.5}).seconds(64) == pytest.approx(1.0)


def test_neither_constant_is_negative():
    """Times that fall with the batch are noise."""
    times = BatchTimes.fit({1: 1.0, 2: 0.9, 4: 0.8})
    assert times.each == 0
    assert times.fixed > 0


@pytest.mark.parametrize("measured", [{}, {1: 0.0}, {0: 1.0}, {1: float("nan")}])
def test_what_is_no_time_is_refused(measured):
    with pytest.raises(ValueError, match="seconds above 0"):
        BatchTimes.fit(measured)
