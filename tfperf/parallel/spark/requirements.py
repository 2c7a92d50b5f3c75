"""What training on Spark needs, Java among it, which pip cannot install."""

import importlib.util
import os
import re
import shutil
from pathlib import Path

from tfperf.errors import TfperfError
from tfperf.processes import run

__all__ = ["OLDEST_JAVA", "check_requirements", "java_version"]

OLDEST_JAVA = 17
"""The Java version of Spark 4: https://spark.apache.org/docs/latest/#downloading"""

JAVA_DEADLINE = 60.0
"""Seconds for `java -version`."""

REMEDIES = {
    "pyspark": "pip install 'tfperf[spark]'",
    "pyarrow": "pip install 'tfperf[spark]'",
    "tensorflowonspark": "pip install 'tfperf[spark]'",
    "pkg_resources": "pip install 'setuptools<81', which still has it; TensorFlowOnSpark imports it",
    "horovod": "run `tfperf horovod install`",
}
"""Module -> how to get it."""


def check_requirements() -> None:
    """Refuse to go on without Java, PySpark, TensorFlowOnSpark or Horovod. Starts nothing but `java -version`.

    Raises:
        TfperfError: one of them is missing, or Java is too old; says how to get it.
    """
    found = java_version()
    if found is None or found < OLDEST_JAVA:
        what = "none" if found is None else f"Java {found}"
        raise TfperfError(
            f"expected Java {OLDEST_JAVA} or newer for Spark, found {what}; install a JDK, "
            "e.g. apt install openjdk-17-jre-headless, or set JAVA_HOME"
        )
    for module, remedy in REMEDIES.items():
        if importlib.util.find_spec(module) is None:
            raise TfperfError(f"expected the module {module} for training on Spark, found none; {remedy}")


def java_version() -> int | None:
    """The major version of the Java that Spark would start: that of JAVA_HOME, else of the PATH; None: there is none.

    Raises:
        TfperfError: there is one, and it does not say which.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None:
        return None
    try:
        process = run([java, "-version"], deadline=JAVA_DEADLINE)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise TfperfError(f"expected Java {OLDEST_JAVA} or newer for Spark, {java} cannot be run: {error}") from error
    said = re.search(r'version "(?:1\.)?(\d+)', process.errors + process.output)  # "1.8.0_402" is Java 8
    if said is None:
        raise TfperfError(f"expected Java {OLDEST_JAVA} or newer for Spark, {java} does not say its version")
    return int(said[1])
