"""Python, and the packages that tfperf requires."""

import importlib.util
import platform
import shlex
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from tfperf.doctor.findings import Finding, State, pip_install

if TYPE_CHECKING:
    from packaging.requirements import Requirement

__all__ = ["examine_packages", "examine_python", "installed_version", "required"]


def examine_python() -> list[Finding]:
    """Its version, whether it has an environment of its own, and whether pip is there."""
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


def examine_packages(requirements: Sequence[str] | None = None) -> list[Finding]:
    """Whether each requirement is installed, in a version within its range: one finding for each.

    Args:
        requirements: as in a requirements file; those of the installed tfperf where None is given.
    """
    if not _can_compare():
        words = "not installed, so no version can be compared with its range"
        return [Finding("package packaging", State.MISSING, words, pip_install("packaging"))]
    if requirements is None and installed_version("tfperf") is None:
        words = "not installed, so what it requires is not known"
        return [Finding("package tfperf", State.MISSING, words, pip_install("-r", "requirements.txt"))]
    return [_package(requirement) for requirement in _parsed(requirements)]


def required(package: str) -> str:
    """The requirement that tfperf has of a package, as pip takes it: 'numpy<3,>=2.0'; without one, its name."""
    if not _can_compare() or installed_version("tfperf") is None:
        return package
    return next((f"{r.name}{r.specifier}" for r in _parsed(None) if r.name == package), package)


def installed_version(package: str) -> str | None:
    """The version of an installed package; None where it is not installed."""
    try:
        return str(metadata.version(package))
    except metadata.PackageNotFoundError:
        return None


def _can_compare() -> bool:
    return importlib.util.find_spec("packaging") is not None


def _parsed(texts: Sequence[str] | None) -> "list[Requirement]":
    """The requirements that hold here. The home of tfperf's own is requirements.txt, which its metadata repeat."""
    from packaging.requirements import Requirement

    requirements = map(Requirement, (metadata.requires("tfperf") or []) if texts is None else texts)
    return [r for r in requirements if r.marker is None or r.marker.evaluate({"extra": ""})]


def _package(requirement: "Requirement") -> Finding:
    from packaging.version import InvalidVersion

    subject, expected = f"package {requirement.name}", str(requirement.specifier) or "any version"
    mend = pip_install(f"{requirement.name}{requirement.specifier}")
    version = installed_version(requirement.name)
    if version is None:
        return Finding(subject, State.MISSING, f"not installed; expected {expected}", mend)
    try:
        fits = requirement.specifier.contains(version, prereleases=True)
    except InvalidVersion:
        fits = False
    if not fits:
        return Finding(subject, State.UNFIT, f"{version}; expected {expected}", mend)
    return Finding(subject, State.OK, version)
