"""Requirements against what is installed."""

import importlib.util
import re
import shlex
from importlib import metadata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.requirements import Requirement
from packaging.version import Version

from tfperf.doctor import State, packages

ROOT = Path(__file__).resolve().parents[2]


def test_every_requirement_of_tfperf_is_looked_at_and_none_of_its_extras():
    lines = (line.partition("#")[0].strip() for line in (ROOT / "requirements.txt").read_text().splitlines())
    names = [Requirement(line).name for line in lines if line and not line.startswith("-")]
    findings = packages.look()
    assert [finding.subject for finding in findings] == [f"package {name}" for name in names]
    assert all(finding.state is State.OK for finding in findings)


def test_what_is_not_installed_is_missing(versions):
    versions(numpy="2.4.0")
    finding, fine = packages.look(["scipy>=1.15,<2", "numpy>=2.0,<3"])
    assert (finding.state, fine.state) == (State.MISSING, State.OK)
    assert re.search(r"not installed; expected .*>=1.15", finding.found)
    installed = shlex.split(finding.mend)[-1]
    assert Requirement(installed).specifier == Requirement("scipy>=1.15,<2").specifier


@pytest.mark.parametrize("version", ["1.26.4", "3.0", "3.0rc1", "no version", ""])
def test_a_version_out_of_range_is_unfit(versions, version):
    versions(numpy=version)
    (finding,) = packages.look(["numpy>=2.0,<3"])
    assert finding.state is State.UNFIT


@settings(deadline=None)
@given(st.tuples(*[st.integers(0, 4)] * 3), st.tuples(*[st.integers(0, 4)] * 2), st.tuples(*[st.integers(0, 4)] * 2))
def test_a_range_is_from_its_lower_end_up_to_its_upper(version, low, high):
    text = ".".join(map(str, version))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metadata, "version", lambda package: text)
        (finding,) = packages.look([f"x>={low[0]}.{low[1]},<{high[0]}.{high[1]}"])
    fits = low <= version and Version(text) < Version(f"{high[0]}.{high[1]}")
    assert (finding.state is State.OK) == fits


def test_a_requirement_for_other_systems_or_extras_is_passed_over(versions):
    versions()
    texts = ['a; extra == "test"', 'b; sys_platform == "nonsense"', 'c; python_version >= "3.11"']
    assert [finding.subject for finding in packages.look(texts)] == ["package c"]


def test_a_hostile_version_is_just_text(versions):
    versions(x="[bold]1\x1b[2J")
    (finding,) = packages.look(["x>=1"])
    assert finding.found.startswith("[bold]1\\x1b[2J; expected >=1")


def test_tfperf_without_metadata_is_one_finding(versions):
    versions()
    (finding,) = packages.look()
    assert (finding.subject, finding.state) == ("package tfperf", State.MISSING)
    assert packages.required("numpy") == "numpy"


def test_without_packaging_that_is_the_finding(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    (finding,) = packages.look()
    assert (finding.subject, finding.state) == ("package packaging", State.MISSING)
    assert finding.mend.endswith("install packaging")
    assert packages.required("numpy") == "numpy"


def test_a_requirement_is_told_as_pip_takes_it():
    assert Requirement(packages.required("numpy")).name == "numpy"
    assert Requirement(packages.required("numpy")).specifier.contains(metadata.version("numpy"))
    assert packages.required("nonsense") == "nonsense"
