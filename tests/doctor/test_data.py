"""Data sets that are here already; nothing is fetched."""

import socket

import pytest

from tfperf.data import NAMES
from tfperf.data.expected import IMAGE_SETS
from tfperf.data.places import download_place, places
from tfperf.doctor import State, data


@pytest.fixture(autouse=True)
def _own_folders(tmp_path, monkeypatch):
    """Empty caches, and a network that is an error to touch."""

    def refuse(*arguments):
        raise AssertionError("the doctor used the network")

    for variable in ("KERAS_HOME", "TFPERF_CACHE"):
        (tmp_path / variable).mkdir()
        monkeypatch.setenv(variable, str(tmp_path / variable))
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setitem(places.__kwdefaults__, "installed", tmp_path / "debian")


def test_every_data_set_is_looked_for():
    assert [finding.subject for finding in data.look()] == [f"data set {name}" for name in NAMES]


@pytest.mark.parametrize("name", sorted(IMAGE_SETS))
def test_one_that_is_not_here_is_a_note_and_is_not_fetched(name, tmp_path):
    finding = data._image_set(name)
    assert finding.state is State.NOTE
    assert finding.mend.endswith(f"tfperf data {name}")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_corrupt_one_is_a_note_that_names_the_file():
    spec = IMAGE_SETS["mnist"]
    folder = download_place(spec).folder
    folder.mkdir(parents=True)
    (folder / spec.files[0].filename).write_bytes(b"not a data set")
    finding = data._image_set("mnist")
    assert finding.state is State.NOTE
    assert str(folder / spec.files[0].filename) in finding.found
    assert "Delete it" in finding.found


def test_one_that_is_here_is_told_with_its_place(monkeypatch):
    class Found:
        source = "tfperf cache: [bold]/somewhere"

    monkeypatch.setattr("tfperf.data.loading.locate", lambda spec, candidates: Found)
    finding = data._image_set("mnist")
    assert (finding.state, finding.found) == (State.OK, "tfperf cache: [bold]/somewhere")


def test_the_digits_come_with_scikit_learn(versions):
    versions(scikit_learn="1.9.1")
    assert data._digits("digits").found == "scikit-learn 1.9.1, which holds it, is installed"
    versions()
    finding = data._digits("digits")
    assert finding.state is State.NOTE
    assert finding.mend.endswith("install 'tfperf[data]'")
