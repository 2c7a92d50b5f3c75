"""Planted engines and a net for them, as tests/engines has them; searches that are brief."""

import pytest

from tests.fixtures.engines import DENSE, planted_installed
from tfperf.engines import Plan
from tfperf.engines.conversions import Conversions
from tfperf.exports.opening import open_model
from tfperf.search import strategy
from tfperf.trials.process import Origin

NAMED = DENSE.replace("Dense(16,", "Dense(16, name='hidden',")
"""Keras counts the layers of a process that have no name, so that the next net would be another."""


@pytest.fixture(scope="session")
def dense(tmp_path_factory):
    """A net that processes can open, with what is converted for planted engines: (servable, origin, cache)."""
    place = tmp_path_factory.mktemp("dense")
    (place / "dense.py").write_text(NAMED)
    origin = Origin(f"{place / 'dense.py'}:build")
    servable = open_model(origin.model)
    with planted_installed():
        Conversions(servable, place / "cache").folder(Plan(engine="honest"))
    return servable, origin, place / "cache"


@pytest.fixture
def brief(monkeypatch, tmp_path):
    """Short measurements, none of what users have (that starts TensorFlow, twice), and a cache of its own."""
    monkeypatch.setattr("tfperf.search.space.DEFAULTS", ())
    for name, seconds in {"LOOK_SECONDS": 0.1, "ROUND_SECONDS": 0.1, "FINAL_SECONDS": 0.8}.items():
        monkeypatch.setattr(strategy, name, strategy.THRESHOLDS[name]._replace(value=seconds))
    monkeypatch.setenv("TFPERF_CACHE", str(tmp_path / "cache"))
