"""The packages that tfperf requires: is each installed, in a version within its range?"""

import importlib.util
from collections.abc import Sequence
from importlib import metadata
from typing import TYPE_CHECKING

from tfperf.doctor.finding import Finding, State
from tfperf.doctor.shell import pip_install

if TYPE_CHECKING:
    from packaging.requirements import Requirement

__all__ = ["installed_version", "look", "required"]


def look(requirements: Sequence[str] | None = None) -> list[Finding]:
    """One finding for each requirement.

    Args:
        requirements: as in a requirements file; those of the installed tfperf where None is given.
    """
    if not _can_compare():
        words = "not installed, so no version can be compared with its range"
        return [Finding("package packaging", State.MISSING, words, pip_install("packaging"))]
    if requirements is None and installed_version("tfperf") is None:
        words = "not installed, so what it requires is not known"
        return [Finding("package tfperf", State.MISSING, words, pip_install("-r", "requirements.txt"))]
    return [_examined(requirement) for requirement in _parsed(requirements)]


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


def _examined(requirement: "Requirement") -> Finding:
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
