"""Fixtures of tests/measure: the fake machine, its recorded noise, and the mutants."""

import os
from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest

from tests.measure import fake_machine as _fake_machine
from tests.measure import mutants as _mutants
from tfperf.measure.environment import Conditions, Environment
from tfperf.measure.measurement import Measurement, Stop
from tfperf.measure.memory import MemoryPeak


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test with the argument `trace` runs once with each recorded trace; `quiet_trace`: the quiet ones."""
    for argument, wanted in (("trace", ""), ("quiet_trace", "quiet"), ("loaded_trace", "loaded")):
        if argument in metafunc.fixturenames:
            metafunc.parametrize(argument, [name for name in _fake_machine.TRACES if wanted in name])
    if "mutant_name" in metafunc.fixturenames:
        metafunc.parametrize("mutant_name", list(_mutants.MUTANTS))


@pytest.fixture(autouse=True)
def _mutated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the tests against a mutant, where the environment names one."""
    if name := os.environ.get(_mutants.VARIABLE):
        _mutants.MUTANTS[name].apply(monkeypatch)


@pytest.fixture(autouse=True)
def _outside_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare each measurement the question to git; its answer is tested in test_environment.py."""
    monkeypatch.setattr("tfperf.measure.environment._git_revision", lambda folder: None)


@pytest.fixture(scope="session")
def fake() -> ModuleType:
    """FakeMachine, FakeDevice, load_trace and nothing: see fake_machine.py."""
    return _fake_machine


@pytest.fixture(scope="session")
def mutants() -> ModuleType:
    """MUTANTS: see mutants.py."""
    return _mutants


@pytest.fixture(scope="session")
def environment() -> Environment:
    """An environment in which nothing gives reason to doubt."""
    return Environment(
        cpu="Test CPU",
        cpu_features=(),
        accelerators=(),
        logical_cores=4,
        usable_cores=4,
        memory_bytes=2**34,
        frequency_governor="performance",
        hypervisor=False,
        system="Linux 6.0 x86_64",
        python="3.11.0",
        packages={"numpy": "2.4.0"},
        variables={},
        git_revision=None,
    )


@pytest.fixture(scope="session")
def conditions() -> Conditions:
    """Conditions in which nothing gives reason to doubt."""
    return Conditions(load_before=0.1, steal_share=0.0, busy_elsewhere_share=0.01, seconds=1.0)


@pytest.fixture(scope="session")
def make_measurement(environment: Environment, conditions: Conditions) -> Callable[..., Measurement]:
    """Makes a Measurement of given samples, with every other field harmless unless given."""

    def make(seconds: object = (0.001,) * 30, **fields: object) -> Measurement:
        harmless = {
            "name": "work",
            "calls_per_sample": 1,
            "first_call_seconds": 0.5,
            "warm_up_seconds": (),
            "precision": 0.01,
            "stopped": Stop.PRECISION,
            "read_cost_seconds": 1e-7,
            "memory": MemoryPeak(resident=2000, resident_before=1000, device=None, of_whole_process=False),
            "environment": environment,
            "conditions": conditions,
        }
        return Measurement(seconds=tuple(float(s) for s in np.asarray(seconds)), **(harmless | fields))

    return make
