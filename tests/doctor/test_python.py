"""Python's version against the package's metadata, its environment, pip; requirements against what is installed."""

import importlib.util
import re
import shlex
import sys
from importlib import metadata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.requirements import Requirement
from packaging.version import Version

from tfperf.doctor import State, python
from tfperf.doctor.python import examine_packages, examine_python, required

ROOT = Path(__file__).resolve().parents[2]


def test_this_python_is_fit():
    version, environment, pip = examine_python()
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


def test_every_requirement_of_tfperf_is_looked_at_and_none_of_its_extras():
    lines = (line.partition("#")[0].strip() for line in (ROOT / "requirements.txt").read_text().splitlines())
    names = [Requirement(line).name for line in lines if line and not line.startswith("-")]
    findings = examine_packages()
    assert [finding.subject for finding in findings] == [f"package {name}" for name in names]
    assert all(finding.state is State.OK for finding in findings)


def test_what_is_not_installed_is_missing(versions):
    versions(numpy="2.4.0")
    finding, fine = examine_packages(["scipy>=1.15,<2", "numpy>=2.0,<3"])
    assert (finding.state, fine.state) == (State.MISSING, State.OK)
    assert re.search(r"not installed; expected .*>=1.15", finding.found)
    installed = shlex.split(finding.mend)[-1]
    assert Requirement(installed).specifier == Requirement("scipy>=1.15,<2").specifier


@pytest.mark.parametrize("version", ["1.26.4", "3.0", "3.0rc1", "no version", ""])
def test_a_version_out_of_range_is_unfit(versions, version):
    versions(numpy=version)
    (finding,) = examine_packages(["numpy>=2.0,<3"])
    assert finding.state is State.UNFIT


@settings(deadline=None)
@given(st.tuples(*[st.integers(0, 4)] * 3), st.tuples(*[st.integers(0, 4)] * 2), st.tuples(*[st.integers(0, 4)] * 2))
def test_a_range_is_from_its_lower_end_up_to_its_upper(version, low, high):
    text = ".".join(map(str, version))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metadata, "version", lambda package: text)
        (finding,) = examine_packages([f"x>={low[0]}.{low[1]},<{high[0]}.{high[1]}"])
    fits = low <= version and Version(text) < Version(f"{high[0]}.{high[1]}")
    assert (finding.state is State.OK) == fits


def test_a_requirement_for_other_systems_or_extras_is_passed_over(versions):
    versions()
    texts = ['a; extra == "test"', 'b; sys_platform == "nonsense"', 'c; python_version >= "3.11"']
    assert [finding.subject for finding in examine_packages(texts)] == ["package c"]


def test_a_hostile_version_is_just_text(versions):
    versions(x="[bold]1\x1b[2J")
    (finding,) = examine_packages(["x>=1"])
    assert finding.found.startswith("[bold]1\\x1b[2J; expected >=1")


def test_tfperf_without_metadata_is_one_finding(versions):
    versions()
    (finding,) = examine_packages()
    assert (finding.subject, finding.state) == ("package tfperf", State.MISSING)
    assert required("numpy") == "numpy"


def test_without_packaging_that_is_the_finding(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    (finding,) = examine_packages()
    assert (finding.subject, finding.state) == ("package packaging", State.MISSING)
    assert finding.mend.endswith("install packaging")
    assert required("numpy") == "numpy"


def test_a_requirement_is_told_as_pip_takes_it():
    assert Requirement(required("numpy")).name == "numpy"
    assert Requirement(required("numpy")).specifier.contains(metadata.version("numpy"))
    assert required("nonsense") == "nonsense"
