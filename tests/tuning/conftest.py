"""Planted engines and a net for them, as tests/engines has them; searches that are brief."""

import importlib.util
import sys
from pathlib import Path

import pytest

from tfperf.engines import Plan
from tfperf.engines.conversions import Conversions
from tfperf.engines.process import Origin
from tfperf.exports.opening import open_model
from tfperf.search import searching


def of_engines():
    """The conftest.py of tests/engines: test files never import one another, pytest imports each by its path."""
    place = Path(__file__).parents[1] / "engines" / "conftest.py"
    spec = importlib.util.spec_from_file_location("tfperf_tests_tuning_engines", place)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


engines = of_engines()
planted = engines.planted

NAMED = engines.DENSE.replace("Dense(16,", "Dense(16, name='hidden',")
"""Keras counts the layers of a process that have no name, so that the next net would be another."""


@pytest.fixture(scope="session")
def dense(tmp_path_factory):
    """A net that processes can open, with what is converted for planted engines: (servable, origin, cache)."""
    place = tmp_path_factory.mktemp("dense")
    (place / "dense.py").write_text(NAMED)
    origin = Origin(f"{place / 'dense.py'}:build")
    servable = open_model(origin.model)
    with engines.planted_installed():
        Conversions(servable, place / "cache").folder(Plan(engine="honest"))
    return servable, origin, place / "cache"


@pytest.fixture
def brief(monkeypatch, tmp_path):
    """Short measurements, none of what users have (that starts TensorFlow, twice), and a cache of its own."""
    monkeypatch.setattr("tfperf.search.space.DEFAULTS", ())
    for name, seconds in {"LOOK_SECONDS": 0.1, "ROUND_SECONDS": 0.1, "FINAL_SECONDS": 0.8}.items():
        monkeypatch.setattr(searching, name, seconds)
    monkeypatch.setenv("TFPERF_CACHE", str(tmp_path / "cache"))
