"""`load` and `obtain`: from a data set's name to its arrays."""

import dataclasses
import difflib
import os

from tfperf.caching import cache_folder
from tfperf.data.dataset import Dataset
from tfperf.data.debian import unpack_package
from tfperf.data.digits import load_digits
from tfperf.data.download import CONTACT_S, fetch
from tfperf.data.expected import IMAGE_SETS, ImageSet
from tfperf.data.places import Place, download_place, package_place, places
from tfperf.data.reading import holds, read_set
from tfperf.errors import DataError

__all__ = ["NAMES", "load", "obtain"]

NAMES: tuple[str, ...] = (*IMAGE_SETS, "digits")

CONTACT_AFTER_DEBIAN_S = 3.5  # shorter than CONTACT_S: Debian's mirrors have had their seconds already


def load(name: str) -> Dataset:
    """A real data set, checked, by its name.

    It is looked for in Keras's cache, then as an installed or unpacked Debian package, then among
    tfperf's earlier downloads; only then is it downloaded. `digits` comes with scikit-learn.

    Args:
        name: one of `NAMES`.

    Raises:
        TypeError: the name is not a string.
        ValueError: the name is unknown.
        DataError: a file that was found is corrupt (no other place is tried then), or the data is nowhere
            and cannot be downloaded; without a network that takes less than 10 s.
    """
    _check_name(name)
    return load_digits() if name == "digits" else load_set(IMAGE_SETS[name])


def obtain(name: str) -> Dataset:
    """Load like `load`, but take what is not on this machine from Debian's archive, without root.

    Raises:
        TypeError, ValueError, DataError: as for `load`.
    """
    _check_name(name)
    return load_digits() if name == "digits" else obtain_set(IMAGE_SETS[name])


def load_set(spec: ImageSet) -> Dataset:
    """`load` for a data set that comes as files."""
    found = locate(spec, places(spec))
    if found is not None:
        return found
    try:
        return _download(spec, CONTACT_S)
    except _UnreachableError as error:
        ways = []
        if spec.debian_package is not None:
            ways.append(f"run `tfperf data {spec.name}`, which also asks Debian's package mirrors (no root needed)")
        raise DataError(_nowhere(spec, str(error), ways)) from error


def obtain_set(spec: ImageSet) -> Dataset:
    """`obtain` for a data set that comes as files."""
    found = locate(spec, places(spec))
    if found is not None:
        return found
    if spec.debian_package is None:
        return load_set(spec)
    try:
        return _from_debian(spec, spec.debian_package)
    except DataError as error:
        debian_problem = str(error)
    try:
        return _download(spec, CONTACT_AFTER_DEBIAN_S)
    except _UnreachableError as error:
        raise DataError(_nowhere(spec, f"{debian_problem}; {error}", [])) from error


def locate(spec: ImageSet, candidates: list[Place]) -> Dataset | None:
    """The data set from the first place that has all of its files; None where no place has them.

    Raises:
        DataError: that place's files are corrupt.
    """
    for place in candidates:
        if holds(place, spec):
            return read_set(place, spec)
    return None


class _UnreachableError(DataError):
    """The files could not be downloaded: a problem to which there are other ways."""


def _download(spec: ImageSet, contact_s: float) -> Dataset:
    """Download those files of the data set that tfperf's cache lacks, then read it from there."""
    place = download_place(spec)
    cache_folder("datasets")
    try:
        for file in spec.files:
            path = place.folder / file.filename
            if not os.path.lexists(path):
                fetch(spec.url + file.filename, path, file, contact_s=contact_s)
    except DataError as error:
        raise _UnreachableError(str(error)) from error
    return dataclasses.replace(read_set(place, spec), source=f"download from {spec.url} to {place.folder}")


def _from_debian(spec: ImageSet, package: str) -> Dataset:
    """Unpack the data set's Debian package in tfperf's cache, then read it from there."""
    root = cache_folder() / package
    unpack_package(package, root, check=lambda tree: read_set(package_place(spec, package, tree), spec))
    place = package_place(spec, package, root)
    if not holds(place, spec):
        raise DataError(f"{root} was there already and lacks files of {spec.name}. {place.remedy}")
    return read_set(place, spec)


def _nowhere(spec: ImageSet, problem: str, ways: list[str]) -> str:
    """The error for a data set that is out of reach: what was tried, and what a person can do."""
    names = ", ".join(file.filename for file in spec.files)
    ways = [*ways, f"copy {names} from another machine to {download_place(spec).folder}"]
    return f"{spec.name} is not on this machine and cannot be fetched: {problem}. To go on: {'; or '.join(ways)}."


def _check_name(name: str) -> None:
    if not isinstance(name, str):
        raise TypeError(f"expected the name of a data set as a string. Received: name={name!r}")
    if name not in NAMES:
        near = difflib.get_close_matches(name.lower().replace("-", "_"), NAMES, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"expected one of {', '.join(NAMES)}. Received: name={name!r}.{hint}")
