"""Which data sets are on this machine already. Nothing is downloaded, nothing is unpacked."""

from collections.abc import Sequence

from tfperf.doctor.finding import Finding, State
from tfperf.doctor.packages import installed_version
from tfperf.doctor.shell import own_command, pip_install

__all__ = ["look"]


def look(names: Sequence[str] | None = None) -> list[Finding]:
    """One finding for each data set, whose files are read and checked where they are found.

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
