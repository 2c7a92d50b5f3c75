"""Python: its version, whether it has an environment of its own, and whether pip is there."""

import importlib.util
import platform
import shlex
import sys
from importlib import metadata
from pathlib import Path

from tfperf.doctor.finding import Finding, State

__all__ = ["look"]


def look() -> list[Finding]:
    """What there is to say of this Python."""
    return [_version(platform.python_version()), _environment(), _pip()]


def _version(version: str) -> Finding:
    """Whether the version is one that the package's own metadata allow."""
    allowed = _requires_python()
    words = f"{platform.python_implementation()} {version}, {sys.executable}"
    try:
        from packaging.specifiers import SpecifierSet
    except ImportError:
        return Finding("Python", State.NOTE, f"{words}; not compared with {allowed}, for want of the package packaging")
    specifiers = SpecifierSet(allowed)
    if specifiers.contains(version, prereleases=True):
        return Finding("Python", State.OK, words)
    fitting = [minor for minor in (f"3.{number}" for number in range(100)) if specifiers.contains(minor)]
    mend = f"python{fitting[-1]} -m venv .venv" if fitting else ""
    return Finding("Python", State.UNFIT, f"{words}; expected {allowed}", mend)


def _requires_python() -> str:
    """The versions that tfperf is for, ">=3.11,<3.14"; "" where it is not installed and so does not say."""
    try:
        about = metadata.metadata("tfperf")
    except metadata.PackageNotFoundError:
        return ""
    return str((about.get_all("Requires-Python") or [""])[0])


def _environment() -> Finding:
    subject = "environment"
    if sys.prefix != sys.base_prefix:
        return Finding(subject, State.OK, f"virtual environment {sys.prefix}")
    if (Path(sys.prefix) / "conda-meta").is_dir():
        return Finding(subject, State.OK, f"conda environment {sys.prefix}")
    words = f"none of its own: packages go to {sys.prefix}, where other programs use them too"
    return Finding(subject, State.NOTE, words, shlex.join([sys.executable or "python3", "-m", "venv", ".venv"]))


def _pip() -> Finding:
    if importlib.util.find_spec("pip") is not None:
        return Finding("pip", State.OK, f"{metadata.version('pip')}")
    words = "not in this environment, so the lines here that say pip need it first"
    return Finding("pip", State.NOTE, words, shlex.join([sys.executable or "python3", "-m", "ensurepip"]))
