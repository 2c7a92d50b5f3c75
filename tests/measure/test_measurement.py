"""Measurement: what it derives from its samples, and what it refuses to hold."""

import math

import numpy as np
import pytest
from pydantic import ValidationError
from scipy import stats

from tfperf.errors import MeasurementError
from tfperf.measure.measurement import Doubt, Measurement
from tfperf.measure.words import format_interval


def test_median_ignores_spikes(make_measurement) -> None:
    samples = np.full(31, 0.001)
    samples[::4] = 1.0
    measurement = make_measurement(samples)
    assert measurement.median == 0.001
    assert measurement.interval.estimate == 0.001


def test_its_interval_is_scipys(make_measurement) -> None:
    samples = np.random.default_rng(0).lognormal(-7, 0.1, size=15)
    theirs = stats.quantile_test(samples, q=np.median(samples), p=0.5).confidence_interval(0.95)
    interval = make_measurement(samples).interval
    assert (interval.low, interval.high) == pytest.approx((theirs.low, theirs.high), rel=1e-12)


def test_quartiles_are_numpys(make_measurement) -> None:
    samples = np.random.default_rng(1).lognormal(-7, 0.1, size=50)
    low, high = np.quantile(samples, [0.25, 0.75])
    assert make_measurement(samples).interquartile_range == pytest.approx(high - low)


def test_turns_are_medians_of_whole_turns(make_measurement) -> None:
    measurement = make_measurement([1.0, 2.0, 9.0, 4.0, 5.0, 6.0], samples_per_turn=3)
    assert measurement.turns.tolist() == [2.0, 5.0]
    assert measurement.median == 3.5
    with pytest.raises(ValidationError, match="whole turns of 4 samples"):
        make_measurement([1.0] * 6, samples_per_turn=4)


def test_p99_is_refused_under_662_samples(make_measurement) -> None:
    assert make_measurement(np.arange(1.0, 663.0)).percentile(99) == np.percentile(np.arange(1.0, 663.0), 99)
    with pytest.raises(MeasurementError, match="p99 of 'work' needs at least 662 samples, there are 661: measure with"):
        make_measurement(np.arange(1.0, 662.0)).percentile(99)


def test_throughput(make_measurement) -> None:
    assert make_measurement([0.5] * 10).throughput(32) == 64


def test_as_words(make_measurement) -> None:
    measurement = make_measurement([0.002] * 10, name="eager")
    assert str(measurement) == f"eager: {format_interval(measurement.interval)} a call"


def test_a_doubt_says_what_to_do() -> None:
    assert str(Doubt(name="noise", words="it is loud", advice="hush it")) == "it is loud: hush it"


def test_it_is_immutable(make_measurement) -> None:
    measurement = make_measurement()
    with pytest.raises(ValidationError, match="frozen"):
        measurement.name = "other"
    measurement.samples[0] = 5.0  # a copy
    assert measurement.seconds[0] == 0.001


@pytest.mark.parametrize(
    "fields",
    [
        {"seconds": []},
        {"seconds": [0.0]},
        {"seconds": [-1.0]},
        {"seconds": [math.nan]},
        {"seconds": [math.inf]},
        {"calls_per_sample": 0},
        {"calls_per_sample": 1.0},
        {"first_call_seconds": 0.0},
        {"name": ""},
        {"name": "a\x1b[2J"},
        {"name": "x" * 201},
        {"stopped": "because"},
        {"read_cost_seconds": -1e-9},
        {"precision": 0.0},
        {"surprise": 1},
    ],
)
def test_it_refuses(make_measurement, fields: dict) -> None:
    with pytest.raises(ValidationError):
        make_measurement(**fields)


def test_no_field_but_those_with_a_plain_meaning_has_a_default() -> None:
    optional = {name for name, field in Measurement.model_fields.items() if not field.is_required()}
    assert optional == {"samples_per_turn", "doubts"}
