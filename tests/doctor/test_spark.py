"""Spark's packages and its Java: all optional."""

import importlib.util

import pytest

from tfperf.doctor import State, spark


@pytest.fixture(autouse=True)
def _no_java_chosen(monkeypatch):
    monkeypatch.delenv("JAVA_HOME", raising=False)


def test_nothing_is_three_notes(versions, tools):
    versions()
    findings = spark.look()
    assert [finding.state for finding in findings] == [State.NOTE] * 3
    assert findings[0].mend.endswith("install 'tfperf[spark]'")
    assert findings[2].found == "none; Spark needs version 17 or later"


@pytest.mark.parametrize(
    ("script", "state", "words"),
    [
        ("""echo 'openjdk version "17.0.15" 2025-04-15' >&2""", State.OK, "version 17"),
        ("""echo 'java version "21" 2023-09-19' >&2""", State.OK, "version 21"),
        ("""echo 'openjdk version "1.8.0_412"' >&2""", State.NOTE, "version 8; Spark needs version 17 or later"),
        ("echo '[bold]what?' >&2", State.NOTE, "does not say its version"),
    ],
)
def test_java_is_new_enough_or_a_note(tools, script, state, words):
    tools("java", script)
    finding = spark._java()
    assert finding.state is state
    assert words in finding.found


def test_java_is_got_from_apt_where_there_is_apt(tools):
    tools("apt-get", "exit 0")
    assert spark._java().mend.endswith("apt-get install openjdk-17-jre-headless")


@pytest.mark.parametrize("is_there", [True, False])
def test_tensorflowonspark_needs_an_old_setuptools(versions, monkeypatch, is_there):
    versions(tensorflowonspark="2.2.5")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if is_there else None)
    finding = spark._tensorflow_on_spark()
    assert finding.state is (State.OK if is_there else State.NOTE)
    assert finding.mend == "" or finding.mend.endswith("install 'setuptools<81'")
    assert bool(finding.mend) != is_there
