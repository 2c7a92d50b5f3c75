"""Whether a recipe could not run because something that its header asks for is not installed."""

import re
from collections.abc import Iterator
from importlib import metadata

from tfperf.doctor import data, horovod, packages, spark
from tfperf.doctor.finding import Finding, State

__all__ = ["lacking"]


def lacking(needs: str) -> str:
    """The first thing of those a recipe needs that is not here, and what mends it; "" where none is known to lack.

    Looked for are the extras of tfperf, Horovod and data sets, as the headers name them: `pip install 'tfperf[spark]'`,
    `tfperf horovod install`, `tfperf data fashion_mnist`. About a second for Horovod; imports no TensorFlow.

    Args:
        needs: that field of a header. Semicolons divide it; a part that says "where" names what the recipe uses where
            it is installed, and can do without.
    """
    findings = (finding for part in needs.split(";") if "where" not in part.split() for finding in _findings(part))
    lack = next((finding for finding in findings if finding.state is not State.OK), None)
    if lack is None:
        return ""
    return f"{lack.subject}: {lack.found}" + (f"; {lack.mend}" if lack.mend else "")


def _findings(part: str) -> Iterator[Finding]:
    """How it stands with what one part of the needs names."""
    for extra in re.findall(r"tfperf\[(\w+)\]", part):
        yield from spark.look() if extra == "spark" else _packages_of(extra)
    if "tfperf horovod install" in part:
        yield horovod.look()[0]
    if names := re.findall(r"tfperf data (\w+)", part):
        yield from data.look(names)


def _packages_of(extra: str) -> Iterator[Finding]:
    """How it stands with the packages of an extra, and of those that it is made of."""
    from packaging.requirements import Requirement

    for requirement in map(Requirement, metadata.requires("tfperf") or ()):
        if requirement.marker is None or not requirement.marker.evaluate({"extra": extra}):
            continue
        if requirement.name == "tfperf":
            for inner in sorted(requirement.extras):
                yield from _packages_of(inner)
        else:
            yield from packages.look([f"{requirement.name}{requirement.specifier}"])
