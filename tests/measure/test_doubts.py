"""Each doubt appears just beyond its threshold, and not before."""

import numpy as np
import pytest

from tfperf.measure import doubts
from tfperf.measure.doubts import Evidence, doubts_about
from tfperf.measure.measurement import Stop


@pytest.fixture
def names(environment, conditions):
    """The names of the doubts about otherwise harmless evidence."""

    def of(environment_fields: dict | None = None, conditions_fields: dict | None = None, **fields) -> list[str]:
        harmless = {
            "samples": np.random.default_rng(0).normal(1.0, 0.002, size=200),
            "sample_seconds": 1.0,
            "dropped": 0,
            "precision": 0.01,
            "stopped": Stop.PRECISION,
            "read_cost": 1e-7,
            "environment": environment.model_copy(update=environment_fields or {}),
            "conditions": conditions.model_copy(update=conditions_fields or {}),
        }
        found = doubts_about(Evidence(**(harmless | fields)))
        assert all(doubt.words and doubt.advice for doubt in found)
        return [doubt.name for doubt in found]

    return of


def test_good_evidence_gives_no_doubt(names) -> None:
    assert names() == []


@pytest.mark.parametrize(("count", "expected"), [(1, ["few_samples"]), (5, ["few_samples"]), (6, [])])
def test_few_samples(names, count: int, expected: list[str]) -> None:
    assert names(samples=np.full(count, 1.0)) == expected


def test_one_sample_is_not_in_the_plural(environment, conditions) -> None:
    evidence = Evidence(np.ones(1), 1.0, 0, 0.01, Stop.TIME_LIMIT, 0.0, environment, conditions)
    assert doubts_about(evidence)[0].words == "only 1 sample, fewer than 6"


@pytest.mark.parametrize(("cost", "expected"), [(0.0009, []), (0.0011, ["read_cost"])])
def test_read_cost(names, cost: float, expected: list[str]) -> None:
    assert names(read_cost=cost) == expected


@pytest.mark.parametrize("stopped", [Stop.TIME_LIMIT, Stop.NOISE_FLOOR, Stop.SAMPLE_LIMIT])
def test_vague(names, stopped: Stop) -> None:
    samples = np.random.default_rng(0).normal(1.0, 0.5, size=100)
    assert "vague" in names(samples=samples, stopped=stopped)
    assert "vague" not in names(samples=samples, stopped=stopped, precision=0.1)
    assert "vague" not in names(samples=samples, stopped=Stop.PRECISION)


@pytest.mark.parametrize(("dropped", "expected"), [(199, []), (200, ["never_settled"])])
def test_never_settled(names, dropped: int, expected: list[str]) -> None:
    assert names(dropped=dropped) == expected


@pytest.mark.parametrize(("slower", "expected"), [(1.02, False), (1.05, True), (0.95, True)])
def test_drift(names, slower: float, expected: bool) -> None:
    samples = np.random.default_rng(0).normal(1.0, 0.002, size=300)
    samples[200:] *= slower
    assert ("drift" in names(samples=samples)) is expected


def test_the_drift_has_its_direction(environment, conditions) -> None:
    samples = np.random.default_rng(0).normal(1.0, 0.002, size=300)
    samples[200:] *= 1.5
    evidence = Evidence(samples, 1.0, 0, 0.01, Stop.PRECISION, 0.0, environment, conditions)
    words = {doubt.name: doubt.words for doubt in doubts_about(evidence)}
    assert "slower than the first" in words["drift"]


def test_dependent_samples(names) -> None:
    independent = np.random.default_rng(0).normal(1.0, 0.01, size=60)
    assert "dependent_samples" in names(samples=np.repeat(independent, 20))
    assert "dependent_samples" not in names(samples=np.repeat(independent, 3))


@pytest.mark.parametrize(("count", "expected"), [(18, False), (24, True)])
def test_outliers(names, count: int, expected: bool) -> None:
    samples = np.random.default_rng(0).uniform(0.99, 1.01, size=200)
    samples[:: 200 // count][:count] = 5.0
    samples = np.random.default_rng(1).permutation(samples)
    assert ("outliers" in names(samples=samples)) is expected


@pytest.mark.parametrize(
    ("field", "limit", "name"),
    [
        ("steal_share", doubts.MOST_STEAL, "steal"),
        ("busy_elsewhere_share", doubts.MOST_BUSY_ELSEWHERE, "busy_machine"),
    ],
)
def test_conditions(names, field: str, limit: float, name: str) -> None:
    assert names(conditions_fields={field: limit}) == []
    assert names(conditions_fields={field: limit * 1.01}) == [name]


@pytest.mark.parametrize("governor", ["performance", None, "powersave", "schedutil"])
def test_governor(names, governor: str | None) -> None:
    expected = ["governor"] if governor in ("powersave", "schedutil") else []
    assert names(environment_fields={"frequency_governor": governor}) == expected


def test_the_gravest_comes_first(names) -> None:
    found = names(
        read_cost=0.1,
        dropped=500,
        conditions_fields={"steal_share": 0.5, "busy_elsewhere_share": 0.5},
        environment_fields={"frequency_governor": "powersave"},
    )
    assert found == ["read_cost", "never_settled", "steal", "busy_machine", "governor"]
