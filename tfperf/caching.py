"""Where tfperf keeps what it downloaded, built or converted; all of it can be made again, so it may be deleted."""

import os
from pathlib import Path

__all__ = ["cache_folder", "home_folder"]


def cache_folder() -> Path:
    """tfperf's own cache: $TFPERF_CACHE, else $XDG_CACHE_HOME/tfperf, else ~/.cache/tfperf.

    An XDG_CACHE_HOME that is not absolute is ignored, as the XDG base directory specification asks.
    """
    own = os.environ.get("TFPERF_CACHE")
    if own:
        return Path(os.path.expanduser(own)).absolute()  # noqa: PTH111  # Path.expanduser raises without a home
    shared = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(shared) if Path(shared).is_absolute() else home_folder() / ".cache"
    return base / "tfperf"


def home_folder() -> Path:
    """The user's, or "~" itself where there is none."""
    return Path(os.path.expanduser("~"))  # noqa: PTH111  # Path.home raises without a home
