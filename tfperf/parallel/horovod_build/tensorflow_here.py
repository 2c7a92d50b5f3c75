"""The TensorFlow of this environment, found without importing it."""

import dataclasses
import importlib.util
import re
from importlib import metadata
from pathlib import Path

from tfperf.errors import HorovodError

__all__ = ["NEWEST_TRIED", "OLDEST", "TensorFlowHere", "check_fit", "find_tensorflow"]

OLDEST = (2, 16)
"""The oldest TensorFlow whose headers were tried. Those before it are left to Horovod's own build, which knows them."""

NEWEST_TRIED = (2, 21)
"""The newest TensorFlow that Horovod 0.28.1 was built and run with."""

WITHOUT_LLVM = (2, 19)
"""The TensorFlow whose headers for XLA include one of LLVM that its wheel does not have."""


@dataclasses.dataclass(frozen=True)
class TensorFlowHere:
    """An installed TensorFlow.

    Attributes:
        distribution: the package that brought it, as pip calls it: "tensorflow", "tensorflow-cpu", ...
        version: that package's version.
        folder: the folder `tensorflow` with its libraries, Python files and `include/`.
    """

    distribution: str
    version: str
    folder: Path

    @property
    def minor_version(self) -> tuple[int, int]:
        """(major, minor)."""
        major, minor = re.findall(r"\d+", self.version)[:2]
        return int(major), int(minor)

    @property
    def include(self) -> Path:
        """Where its C++ headers lie."""
        return self.folder / "include"

    def cuda_version(self) -> str | None:
        """The CUDA that it was compiled with, or None for a build without CUDA."""
        build_info = self.folder / "python" / "platform" / "build_info.py"
        found = (
            re.search(r"'cuda_version', '([\d.]+)'", build_info.read_text(encoding="utf-8"))
            if build_info.exists()
            else None
        )
        return found[1] if found else None


def find_tensorflow() -> TensorFlowHere | None:
    """The TensorFlow that `import tensorflow` would load here, or None. A fraction of a second."""
    importlib.invalidate_caches()
    spec = importlib.util.find_spec("tensorflow")
    distributions = metadata.packages_distributions().get("tensorflow")
    if spec is None or spec.origin is None or not distributions:  # a folder without code is what pip leaves at times
        return None
    return TensorFlowHere(distributions[0], metadata.version(distributions[0]), Path(spec.origin).parent)


def check_fit(tensorflow: TensorFlowHere | None) -> TensorFlowHere:
    """Return a TensorFlow that Horovod can be built for.

    Raises:
        HorovodError: there is none, it is too old, or it lies where Horovod's build cannot reach it.
    """
    wanted = f"expected TensorFlow {'.'.join(map(str, OLDEST))} or later"
    if tensorflow is None:
        raise HorovodError(f"{wanted} to build Horovod for, found none; pip install tensorflow")
    if tensorflow.minor_version < OLDEST:
        raise HorovodError(
            f"{wanted}, found {tensorflow.version}: for this one Horovod needs no help of ours; "
            "HOROVOD_WITH_TENSORFLOW=1 pip install --no-build-isolation horovod==0.28.1"
        )
    if tensorflow.minor_version == WITHOUT_LLVM:
        raise HorovodError(
            f"expected a TensorFlow that Horovod can be built for, found {tensorflow.version}, whose headers include "
            "llvm/ADT/ArrayRef.h, which its wheel does not have; pip install tensorflow==2.21.*"
        )
    if not tensorflow.include.is_dir():
        raise HorovodError(
            f"expected TensorFlow's C++ headers in {tensorflow.include}; reinstall {tensorflow.distribution}"
        )
    if re.search(r"\s", str(tensorflow.folder)):
        raise HorovodError(
            f"expected TensorFlow in a path without spaces, found {str(tensorflow.folder)!r}: "
            "Horovod's build splits it there; use an environment elsewhere"
        )
    return tensorflow
