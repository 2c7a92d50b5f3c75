"""Where the files of a data set may lie on this machine, in the order in which they are looked for."""

import contextlib
import dataclasses
import os
from pathlib import Path

from tfperf.caching import cache_place, home_folder
from tfperf.data.expected import ImageSet
from tfperf.errors import CacheError

__all__ = ["Place", "download_place", "keras_folders", "package_place", "places"]

_INSTALLED = Path("/usr/share/datasets")  # where Debian's packages put data sets
_LAST_RESORT = Path("/tmp/.keras")  # noqa: S108  # Keras's own choice; we only read, and check, what is there


@dataclasses.dataclass(frozen=True)
class Place:
    """A folder that may hold a data set.

    Attributes:
        label: what kind of place it is, in words.
        folder: the folder with the files.
        remedy: what to do about a corrupt file there.
    """

    label: str
    folder: Path
    remedy: str

    def __str__(self) -> str:
        return f"{self.label}: {self.folder}"


def keras_folders() -> list[Path]:
    """The `datasets` folders of Keras's cache: below $KERAS_HOME or ~/.keras, and maybe /tmp/.keras.

    Keras falls back to the latter when it may not write to its folder (keras.utils.get_file). That
    folder is still read here: a read-only cache that somebody filled is good data.
    """
    named, own = os.environ.get("KERAS_HOME"), home_folder()
    if not named and own is None:
        return [_LAST_RESORT / "datasets"]
    home = Path(os.path.expanduser(named or f"{own}/.keras")).absolute()  # noqa: PTH111  # raises without a home
    homes = [home]
    # os.path, because Path.exists raises where a folder above may not be entered
    nearest = next(folder for folder in (home, *home.parents) if os.path.exists(folder))  # noqa: PTH110
    if not (os.path.isdir(nearest) and os.access(nearest, os.W_OK)):  # noqa: PTH112
        homes.append(_LAST_RESORT)
    return [folder / "datasets" for folder in homes]


def package_place(spec: ImageSet, package: str, root: Path) -> Place:
    """Where a Debian package that was unpacked into the folder `root` holds the data set."""
    return Place(
        f"unpacked Debian package {package}",
        root / _INSTALLED.relative_to("/") / spec.folder,
        _delete_and_fetch(f"the folder {root}", spec),
    )


def download_place(spec: ImageSet) -> Place:
    """Where tfperf keeps what it downloaded.

    Not Keras's cache, though the layout below `datasets` is the same: Keras trusts whatever lies in its
    own cache, so only Keras should write there.

    Raises:
        CacheError: there is no home folder to keep it in.
    """
    return Place("tfperf cache", cache_place() / "datasets" / spec.folder, _delete_and_fetch("it", spec))


def places(spec: ImageSet, *, installed: Path = _INSTALLED) -> list[Place]:
    """The places to look at, in order: Keras's cache, Debian installed or unpacked, tfperf's downloads.

    Others may have written there: whoever reads a data set checks each of its files. Without a home there are fewer.
    """
    found = [Place("Keras cache", folder / spec.folder, _delete_and_fetch("it", spec)) for folder in keras_folders()]
    if (package := spec.debian_package) is not None:
        remedy = f"Reinstall the Debian package {package}."
        found.append(Place(f"Debian package {package}", installed / spec.folder, remedy))
    with contextlib.suppress(CacheError):
        if package is not None:
            found.append(package_place(spec, package, cache_place() / package))
        found.append(download_place(spec))
    return found


def _delete_and_fetch(what: str, spec: ImageSet) -> str:
    return f"Delete {what} and run `tfperf data {spec.name}`."
