"""Python's version against the package's metadata, its environment, pip."""

import importlib.util
import sys
from importlib import metadata

import pytest

from tfperf.doctor import State, python


def test_this_python_is_fit():
    version, environment, pip = python.look()
    assert version.state is State.OK
    assert sys.executable in version.found
    assert environment.state in (State.OK, State.NOTE)
    assert pip.found


@pytest.mark.parametrize(
    ("version", "fits"), [("3.10.9", False), ("3.11.0", True), ("3.13.9", True), ("3.14.0", False)]
)
def test_the_range_is_that_of_the_metadata(version, fits):
    finding = python._version(version)
    assert finding.state is (State.OK if fits else State.UNFIT)
    if not fits:
        assert finding.mend == "python3.13 -m venv .venv"
        assert metadata.metadata("tfperf")["Requires-Python"] in finding.found


def test_a_preview_of_a_fitting_version_fits():
    assert python._version("3.13.0rc1").state is State.OK


def test_without_tfperfs_metadata_any_version_will_do(monkeypatch):
    def metadata_of(package):
        raise metadata.PackageNotFoundError(package)

    monkeypatch.setattr(metadata, "metadata", metadata_of)
    assert python._version("3.99.0").state is State.OK


def test_without_packaging_the_version_is_told_and_not_judged(monkeypatch):
    monkeypatch.setitem(sys.modules, "packaging.specifiers", None)
    finding = python._version("3.99.0")
    assert finding.state is State.NOTE
    assert "3.99.0" in finding.found


def test_the_systems_python_is_a_note_with_a_way_out(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    finding = python._environment()
    assert finding.state is State.NOTE
    assert finding.mend.endswith("-m venv .venv")
    (tmp_path / "conda-meta").mkdir()
    assert python._environment().state is State.OK


def test_no_pip_is_a_note_with_a_way_out(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    finding = python._pip()
    assert finding.state is State.NOTE
    assert finding.mend.endswith("-m ensurepip")
