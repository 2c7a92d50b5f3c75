"""What training on Spark needs: which Java there is, and what is said where something is missing."""

import subprocess

import pytest

from tfperf.errors import TfperfError
from tfperf.parallel.spark import requirements
from tfperf.parallel.spark.requirements import check_requirements


@pytest.fixture
def java_that_says(tmp_path, monkeypatch):
    """A function that makes the only Java there is one that says so."""

    def java_that_says(words):
        java = tmp_path / "jdk" / "bin" / "java"
        java.parent.mkdir(parents=True)
        # Written by a process of its own: children that another thread of this one starts would hold the file open,
        # and what is open for writing cannot be run
        write = ["sh", "-c", 'cat > "$0" && chmod 755 "$0"', str(java)]
        subprocess.run(write, input=f"#!/bin/sh\necho '{words}' >&2\n", text=True, check=True, timeout=60)
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))

    return java_that_says


@pytest.mark.parametrize(
    ("words", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('openjdk version "25-ea" 2025-09-16', 25),
        ('java version "1.8.0_402"', 8),
    ],
)
def test_java_says_its_version(java_that_says, words, version):
    java_that_says(words)
    assert requirements.java_version() == version


def test_java_that_says_nothing_is_an_error(java_that_says):
    java_that_says("hello")
    with pytest.raises(TfperfError, match="does not say its version"):
        requirements.java_version()


def test_java_home_comes_before_the_path(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert requirements.java_version() is None


def test_an_old_java_is_refused(java_that_says):
    java_that_says('java version "11.0.2"')
    with pytest.raises(TfperfError, match=r"Java 17 or newer for Spark, found Java 11; install a JDK"):
        check_requirements()


@pytest.mark.parametrize(
    ("module", "remedy"),
    [("pyspark", r"tfperf\[spark\]"), ("tensorflowonspark", r"tfperf\[spark\]"), ("horovod", "tfperf horovod install")],
)
def test_a_missing_module_is_one_line_with_its_remedy(monkeypatch, module, remedy):
    monkeypatch.setattr(requirements, "java_version", lambda: 17)
    monkeypatch.setattr(requirements.importlib.util, "find_spec", lambda name: None if name == module else name)
    with pytest.raises(TfperfError, match=rf"module {module} .*{remedy}") as caught:
        check_requirements()
    assert "\n" not in str(caught.value)
