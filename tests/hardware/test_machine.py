"""Measurements are kept for a machine and its versions, and for no other."""

import json

import pytest

from tfperf.hardware import machine
from tfperf.hardware.ceilings import Ceilings, ProductRate
from tfperf.hardware.machine import ceilings_of_this_machine, machine_cache, machine_key
from tfperf.measure import Environment

HERE = Environment.here()


def made_up(rate=1e11, quick=False):
    return Ceilings(
        environment=HERE,
        quick=quick,
        products=(ProductRate(dtype="float32", threads=1, size=64, flops_per_second=rate),),
        bandwidths=(),
        calls=(),
        disk_read_bytes_per_second=None,
        loopback_seconds=None,
        loopback_bytes_per_second=None,
    )


@pytest.mark.parametrize(
    "change",
    [
        {"cpu": "another"},
        {"usable_cores": HERE.usable_cores + 1},
        {"memory_bytes": HERE.memory_bytes * 2},
        {"system": "Linux 1.0"},
        {"packages": HERE.packages | {"tensorflow": "1.0"}},
        {"variables": HERE.variables | {"TF_ENABLE_ONEDNN_OPTS": "0"}},
        {"frequency_governor": "powersave"},
    ],
)
def test_the_key_changes_with_what_may_change_a_speed(change):
    assert machine_key(HERE.model_copy(update=change)) != machine_key(HERE)


@pytest.mark.parametrize(
    "change",
    [
        {"git_revision": "0123456789ab"},
        {"accelerators": ("known only when TensorFlow is loaded",)},
        {"memory_bytes": HERE.memory_bytes - 4096},
        {"variables": HERE.variables | {"TF_CPP_MIN_LOG_LEVEL": "2"}},
    ],
)
def test_the_key_stays_with_what_does_not(change):
    assert machine_key(HERE.model_copy(update=change)) == machine_key(HERE)


def test_the_key_changes_with_the_gpu(tmp_path):
    (tmp_path / "0000:01:00.0").mkdir()
    (tmp_path / "0000:01:00.0" / "information").write_text("Model: \t\t NVIDIA X\nIRQ: 1\n")
    with_one = machine_key(HERE, tmp_path)
    assert with_one != machine_key(HERE, tmp_path / "none")
    (tmp_path / "0000:01:00.0" / "information").write_text("Model: \t\t NVIDIA X\nIRQ: 2\n")
    assert machine_key(HERE, tmp_path) == with_one


@pytest.fixture
def measured(monkeypatch):
    """What was asked to be measured; nothing is."""
    asked = []

    def measure_ceilings(threads=None, quick=False, on_step=None):
        asked.append(quick)
        return made_up(1e11 * len(asked), quick)

    monkeypatch.setattr(machine, "measure_ceilings", measure_ceilings)
    return asked


def test_it_is_measured_once_and_again_only_if_asked_to_be_fresh(measured, tmp_path):
    first = ceilings_of_this_machine(tmp_path)
    assert ceilings_of_this_machine(tmp_path) == first
    assert measured == [False]
    assert ceilings_of_this_machine(tmp_path, fresh=True) != first
    assert len(measured) == 2
    assert ceilings_of_this_machine(tmp_path).peak("float32", 1) == 2e11


def test_a_quick_one_does_not_stand_for_a_thorough_one_but_the_other_way_round(measured, tmp_path):
    assert ceilings_of_this_machine(tmp_path, quick=True).quick
    assert ceilings_of_this_machine(tmp_path, quick=True).quick
    assert measured == [True]
    assert not ceilings_of_this_machine(tmp_path).quick
    assert not ceilings_of_this_machine(tmp_path, quick=True).quick
    assert measured == [True, False]


def test_a_file_that_is_damaged_is_measured_again(measured, tmp_path):
    ceilings_of_this_machine(tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-50])
    ceilings_of_this_machine(tmp_path)
    assert len(measured) == 2
    assert machine_cache(tmp_path, "ceilings", Ceilings).read() is not None


def test_what_an_older_version_kept_is_measured_again(measured, tmp_path):
    ceilings_of_this_machine(tmp_path)
    (file,) = tmp_path.iterdir()
    older = json.loads(file.read_text()) | {"version": 1, "convolutions": []}
    file.write_text(json.dumps(older))
    ceilings_of_this_machine(tmp_path)
    assert len(measured) == 2
    assert "convolutions" not in json.loads(file.read_text())


def test_where_nothing_can_be_kept_it_is_measured_all_the_same(measured, tmp_path):
    (tmp_path / "file").write_text("in the way")
    assert ceilings_of_this_machine(tmp_path / "file").peak("float32", 1) == 1e11


def test_without_a_place_for_a_cache_all_is_measured_anew(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tfperf.caching.home_folder", lambda: None)
    for name in ("TFPERF_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    nowhere = machine_cache(None, "ceilings", Ceilings)
    asked = []
    for _ in range(2):
        assert nowhere.get(lambda: asked.append("measured") or made_up()) == made_up()
    assert (nowhere.read(), len(asked)) == (None, 2)
    assert list(tmp_path.iterdir()) == []
