"""Spark: PySpark, TensorFlowOnSpark, and the Java that they run on. All optional."""

import importlib.util

from tfperf.doctor.finding import Finding, State
from tfperf.doctor.packages import installed_version
from tfperf.doctor.shell import apt_install, pip_install
from tfperf.errors import TfperfError

__all__ = ["look"]


def look() -> list[Finding]:
    """One finding for each package, and for Java."""
    return [_package("PySpark", "pyspark"), _tensorflow_on_spark(), _java()]


def _package(name: str, package: str) -> Finding:
    version = installed_version(package)
    if version is None:
        return Finding(name, State.NOTE, "not installed", pip_install("tfperf[spark]"))
    return Finding(name, State.OK, f"{version} is installed")


def _tensorflow_on_spark() -> Finding:
    finding = _package("TensorFlowOnSpark", "tensorflowonspark")
    if finding.state is State.OK and importlib.util.find_spec("pkg_resources") is None:
        words = f"{finding.found}, but imports pkg_resources, which setuptools has only below 81"
        return Finding(finding.subject, State.NOTE, words, pip_install("setuptools<81"))
    return finding


def _java() -> Finding:
    from tfperf.parallel.spark.requirements import OLDEST_JAVA, java_version

    try:
        version = java_version()
    except TfperfError as error:
        return Finding("Java", State.NOTE, str(error))
    if version is not None and version >= OLDEST_JAVA:
        return Finding("Java", State.OK, f"version {version}")
    words = "none" if version is None else f"version {version}"
    mend = apt_install(f"openjdk-{OLDEST_JAVA}-jre-headless")
    return Finding("Java", State.NOTE, f"{words}; Spark needs version {OLDEST_JAVA} or later", mend)
