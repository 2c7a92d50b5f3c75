"""What tfperf does without where it is missing: other engines, Horovod, Spark, data sets."""

import importlib.util
from collections.abc import Sequence

from tfperf.doctor.findings import Finding, State, apt_install, own_command, pip_install
from tfperf.doctor.python import installed_version
from tfperf.errors import HorovodError, TfperfError

__all__ = ["examine_data", "examine_engines", "examine_horovod", "examine_spark"]


def examine_engines() -> list[Finding]:
    """The programs that run or convert an exported net, as the catalog of engines has them: one finding for each."""
    from tfperf.engines.catalog import ENGINES

    programs = {name: packages for engine in ENGINES for name, packages in engine.programs.items()}
    return [_engine(name, packages) for name, packages in programs.items()]


def _engine(name: str, packages: Sequence[str]) -> Finding:
    for package in packages:
        if version := installed_version(package):
            return Finding(name, State.OK, f"{package} {version} is installed")
    return Finding(name, State.NOTE, "not installed", pip_install(packages[0]))


def examine_horovod() -> list[Finding]:
    """Is it there, built for this TensorFlow, and could it be built? One finding for it, one for what a build needs."""
    return [_horovod(), _compiler()]


def _horovod() -> Finding:
    from tfperf.parallel.horovod_build import find_horovod

    horovod = find_horovod()
    mend = own_command("tfperf", "horovod", "install")
    if horovod is None:
        return Finding("Horovod", State.NOTE, "not installed", mend)
    words = str(horovod).removeprefix("Horovod ")
    if horovod.problem is not None:
        return Finding("Horovod", State.NOTE, f"{words}, does not work here: {horovod.problem}", mend)
    return Finding("Horovod", State.OK, words if horovod.nccl is None else f"{words} {horovod.nccl}")


def _compiler() -> Finding:
    from tfperf.parallel.horovod_build.requirements import check_make, find_compiler

    subject = "C++ compiler"
    try:
        compiler = find_compiler()
        check_make()
    except HorovodError as error:
        return Finding(subject, State.NOTE, str(error), apt_install("g++", "make"))
    return Finding(subject, State.OK, f"{compiler}, and make")


def examine_spark() -> list[Finding]:
    """PySpark, TensorFlowOnSpark, and the Java that they run on: one finding for each."""
    return [_spark_package("PySpark", "pyspark"), _tensorflow_on_spark(), _java()]


def _spark_package(name: str, package: str) -> Finding:
    version = installed_version(package)
    if version is None:
        return Finding(name, State.NOTE, "not installed", pip_install("tfperf[spark]"))
    return Finding(name, State.OK, f"{version} is installed")


def _tensorflow_on_spark() -> Finding:
    finding = _spark_package("TensorFlowOnSpark", "tensorflowonspark")
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


def examine_data(names: Sequence[str] | None = None) -> list[Finding]:
    """One finding for each data set, whose files are read and checked where they are found; nothing is downloaded.

    Args:
        names: of data sets; None: all.
    """
    from tfperf.data import NAMES
    from tfperf.data.expected import IMAGE_SETS

    return [_image_set(name) if name in IMAGE_SETS else _digits(name) for name in names or NAMES]


def _image_set(name: str) -> Finding:
    from tfperf.data.expected import IMAGE_SETS
    from tfperf.data.loading import locate
    from tfperf.data.places import places
    from tfperf.errors import DataError

    spec, subject = IMAGE_SETS[name], f"data set {name}"
    fetch = own_command("tfperf", "data", name)
    try:
        found = locate(spec, places(spec))
    except DataError as error:
        return Finding(subject, State.NOTE, str(error))  # it says what to do first, which is not one command
    if found is None:
        return Finding(subject, State.NOTE, "not on this machine yet", fetch)
    return Finding(subject, State.OK, found.source)


def _digits(name: str) -> Finding:
    """The digits lie in scikit-learn's wheel, which is slow to import: that it is installed must do."""
    subject, version = f"data set {name}", installed_version("scikit-learn")
    if version is None:
        words = "comes with scikit-learn, which is not installed"
        return Finding(subject, State.NOTE, words, pip_install("tfperf[data]"))
    return Finding(subject, State.OK, f"scikit-learn {version}, which holds it, is installed")
